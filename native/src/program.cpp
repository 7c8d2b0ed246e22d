// Construction, planning of memory, and access to buffers. See program.h.
#include "program.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "cpu.h"

namespace octavo {
namespace {

void require(bool ok, const std::string& what) {
  if (!ok) throw std::invalid_argument(what);
}

int64_t up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

uint16_t narrow(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  return f != f ? 0x7fc0 : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

float widen(uint16_t h) {
  const uint32_t u = (uint32_t)h << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}

}  // namespace

Program::Program(const Kernels& kernels, Limits limits, std::vector<std::shared_ptr<KVPool>> pools,
                 std::vector<RopeTables> ropes)
    : kernels_(kernels), limits_(limits), pools_(std::move(pools)), ropes_(std::move(ropes)) {
  require(limits_.threads >= 1 && limits_.threads <= 1024, "threads must lie between 1 and 1024");
  require(limits_.max_rows >= 1 && limits_.max_rows <= (1 << 20), "max_rows must lie between 1 and 2^20");
  require(limits_.max_logit_rows >= 1 && limits_.max_logit_rows <= (1 << 20),
          "max_logit_rows must lie between 1 and 2^20");
  require(limits_.max_positions >= 1, "max_positions must be at least 1");
  for (const RopeTables& rope : ropes_) {
    require(pools_.empty() || rope.positions >= limits_.max_positions,
            "a rotary table holds fewer than max_positions positions");
  }
  for (auto& flag : flags_) flag.store(1, std::memory_order_relaxed);
  threads_ = std::make_unique<ThreadPool>(limits_.threads, cpu_count(""));
}

Program::~Program() { close(); }

void Program::close() {
  require(!busy_, "the program is running");
  threads_.reset();
}

const char* Program::name(OpKind kind) {
  static const char* const names[] = {"embed",          "rms_norm",  "linear",    "moe",         "gated_add",
                                      "rope_and_store", "attention", "activate",  "gather_rows", "sample",
                                      "layer_written",  "tap",       "wait_flag", "collective",  "qk_norm",
                                      "cast",           "softcap"};
  return names[(int)kind];
}

const Buffer& Program::buffer(int index) const {
  require(index >= 0 && index < (int)buffers_.size(), "buffer " + std::to_string(index) + " does not exist");
  return buffers_[(size_t)index];
}

// Buffers that live at the same time lie apart; the others share memory. A buffer that nothing reads lives to the end,
// and so does one that rows are gathered from: run_from gathers others.
void Program::place_buffers() {
  std::vector<int> last(buffers_.size(), -1);
  std::vector<bool> read(buffers_.size(), false);
  for (const Op& op : ops_) {
    for (const int b : {op.src, op.gate}) {
      if (b >= 0 && b != op.dst) read[(size_t)b] = true;
    }
  }
  for (const Op& op : ops_) {
    if (op.kind == OpKind::kGather) read[(size_t)op.src] = false;
  }
  std::vector<size_t> placed;
  int64_t total = 0;
  for (size_t i = 0; i < buffers_.size(); i++) {
    Buffer& b = buffers_[i];
    b.overwritten_by = -1;
    last[i] = read[i] ? b.last : (int)ops_.size();
    if (b.pinned || b.first < 0) continue;
    const int64_t size = up(b.bytes() + 64, 4096);
    int64_t offset = 0;
    std::sort(placed.begin(), placed.end(),
              [&](size_t x, size_t y) { return buffers_[x].offset < buffers_[y].offset; });
    for (const size_t j : placed) {
      const Buffer& o = buffers_[j];
      if (last[j] < b.first || last[i] < o.first || o.offset >= offset + size) continue;
      offset = std::max(offset, o.offset + up(o.bytes() + 64, 4096));
    }
    b.offset = offset;
    for (const size_t j : placed) {
      Buffer& o = buffers_[j];
      const bool apart = o.offset >= offset + size || offset >= o.offset + up(o.bytes() + 64, 4096);
      if (!apart && o.overwritten_by < 0) o.overwritten_by = b.first;
    }
    placed.push_back(i);
    total = std::max(total, offset + size);
  }
  workspace_ = Mapping::zeroed((size_t)total);
  for (const size_t i : placed) buffers_[i].data = workspace_.data() + buffers_[i].offset;
}

void Program::plan() {
  if (planned_) return;
  place_buffers();
  size_t attention = 0, sampling = 0, moe = 0, integer = 0;
  for (const Op& op : ops_) {
    if (op.kind == OpKind::kAttention) {
      attention = std::max(
          attention, attention_scratch_bytes(limits_.threads, limits_.max_positions, op.q_heads,
                                             pools_[(size_t)op.group]->head_dim, limits_.max_rows, limits_.naive));
    } else if (op.kind == OpKind::kLinear && limits_.integer) {
      integer = std::max(integer, integer_bytes(buffer(op.src).rows, op.weights[0].packed.k));
    } else if (op.kind == OpKind::kMoe) {
      moe = std::max(moe, moe_layout(moe_shape(op), nullptr, nullptr));
    } else if (op.kind == OpKind::kSample) {
      sampling = std::max(sampling, (size_t)limits_.threads * 2 * (size_t)up(op.index, 16) * sizeof(float));
    }
  }
  attention_scratch_ = Mapping::zeroed(attention);
  sample_scratch_ = Mapping::zeroed(sampling);
  moe_scratch_ = Mapping::zeroed(moe);
  integer_scratch_ = Mapping::zeroed(integer);
  seconds_.assign(ops_.size(), 0.0);
  runs_.resize(pools_.size());
  shared_runs_.resize(pools_.size());
  shared_rows_.resize(pools_.size());
  planned_ = true;
}

size_t Program::workspace_bytes() {
  require(!busy_, "the program is running");
  plan();
  size_t total = workspace_.size() + attention_scratch_.size() + sample_scratch_.size() + moe_scratch_.size() +
                 integer_scratch_.size();
  for (const Buffer& b : buffers_) total += b.own.size();
  return total;
}

void Program::read(int index, int64_t rows, float* dst) {
  const Buffer& b = buffer(index);
  require(!busy_, "the program is running");
  require(b.data != nullptr, "buffer " + std::to_string(index) + " was not written yet");
  require(rows >= 0 && rows <= max_rows(b.kind),
          "more rows than the buffer holds");
  require(b.overwritten_by < 0,
          "buffer " + std::to_string(index) + " shares memory with one that a later op writes; tap() it");
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t c = 0; c < b.columns; c++) {
      *dst++ = b.bf16 ? widen(((const uint16_t*)b.data)[r * b.ld + c]) : ((const float*)b.data)[r * b.ld + c];
    }
  }
}

void Program::write(int index, int64_t rows, int64_t columns, const float* src) {
  const Buffer& b = buffer(index);
  require(!busy_, "the program is running");
  require(b.pinned, "only an input can be written");
  require(columns == b.columns, "the input has " + std::to_string(b.columns) + " columns");
  require(rows >= 0 && rows <= limits_.max_rows, "more rows than the buffer holds");
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t c = 0; c < columns; c++, src++) {
      if (b.bf16) {
        ((uint16_t*)b.data)[r * b.ld + c] = narrow(*src);
      } else {
        ((float*)b.data)[r * b.ld + c] = *src;
      }
    }
  }
}

}  // namespace octavo
