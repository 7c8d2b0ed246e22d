// One step's inputs, copied in: tokens, sequences with their block tables, the rows that need logits and how to draw
// from them, and the rows whose hidden states are wanted. Reused from step to step.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels.h"

namespace octavo {

// How to draw one row. Pointers to counts and mask are the caller's, with their lengths; the rest is owned.
struct SampleSpec {
  SampleRow row{};
  std::vector<int32_t> bias_ids, banned;
  std::vector<float> bias_values;
  int64_t prompt_counts_len = 0, output_counts_len = 0, mask_len = 0;

  // The kernel's row, checked against the vocabulary; throws std::invalid_argument.
  SampleRow checked(int vocab) const;
};

struct Batch {
  struct Sequence {
    int32_t row, count, start, store_from;
  };
  struct Table {
    int64_t width = 0;
    std::vector<int32_t> ids;  // [sequences, width]
  };
  // Prefixes that sequences share in one group: a run's members are sequences, SharedRun::first and count name them.
  struct Shared {
    std::vector<SharedRun> runs;
    std::vector<int32_t> members;
  };

  std::vector<int32_t> tokens;
  std::vector<Sequence> sequences;
  std::vector<Table> tables;    // one a group
  std::vector<Shared> shared;   // one a group, or none at all
  std::vector<int32_t> logit_rows, hidden_rows;
  std::vector<const SampleSpec*> samples;
};

}  // namespace octavo
