#include "batch.h"

#include <cmath>
#include <stdexcept>
#include <string>

namespace octavo {
namespace {

void require(bool ok, const char* what) {
  if (!ok) throw std::invalid_argument(what);
}

void check_ids(const std::vector<int32_t>& ids, int vocab, const char* what) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab) {
      throw std::invalid_argument(std::string(what) + " " + std::to_string(id) + " is outside the vocabulary of " +
                                  std::to_string(vocab));
    }
  }
}

}  // namespace

SampleRow SampleSpec::checked(int vocab) const {
  SampleRow r = row;
  require(r.temperature >= 0 && std::isfinite(r.temperature), "temperature must be finite and at least 0");
  require(r.top_k >= 0, "top_k must be at least 0");
  require(r.top_p > 0 && r.top_p <= 1, "top_p must lie in (0, 1]");
  require(r.min_p >= 0 && r.min_p <= 1, "min_p must lie in [0, 1]");
  require(r.position >= 0, "position must be at least 0");
  require(r.num_logprobs >= -1 && r.num_logprobs <= kMaxLogprobs, "num_logprobs must lie between -1 and 32");
  require(!r.prompt_counts || prompt_counts_len >= vocab, "prompt_counts is shorter than the vocabulary");
  require(!r.output_counts || output_counts_len >= vocab, "output_counts is shorter than the vocabulary");
  require(!r.mask || mask_len >= (vocab + 31) / 32, "mask is shorter than the vocabulary");
  require(r.given >= -1 && r.given < vocab, "a given token must lie within the vocabulary");
  check_ids(bias_ids, vocab, "biased token id");
  check_ids(banned, vocab, "banned token id");
  r.bias_ids = bias_ids.data();
  r.bias_values = bias_values.data();
  r.num_bias = (int32_t)bias_ids.size();
  r.banned = banned.data();
  r.num_banned = (int32_t)banned.size();
  return r;
}

}  // namespace octavo
