// The recorded forward pass: a list of ops over numbered buffers, replayed for any batch within its limits.
//
// Life: constructed with its limits (threads start), recorded op by op, planned at the first run (buffers whose
// lives do not overlap share memory), run once a step, closed (threads end). `run_op` runs one op alone.
// All errors are std::invalid_argument, thrown before anything is computed.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "batch.h"
#include "kernels.h"
#include "kv_pool.h"
#include "memory.h"
#include "pool.h"

namespace octavo {

struct Limits {
  int threads, max_rows, max_logit_rows, max_positions;
  bool f32, naive;
  bool integer = false;  // quantised weights are multiplied as integers
};

// Rotation tables, float [positions, half], in memory that `owner` keeps alive: long contexts make them large.
struct RopeTables {
  int64_t positions = 0, half = 0;
  const float* cos = nullptr;
  const float* sin = nullptr;
  std::shared_ptr<const void> owner;
};

// A packed matrix, or a float vector (kF32, n = 1: k floats in a row), in memory that `owner` keeps alive.
struct WeightRef {
  PackedWeight packed{};
  std::shared_ptr<const void> owner;
  bool is_vector = false;
  bool vector() const { return is_vector; }
  const float* floats() const { return (const float*)packed.data; }
};

using CollectiveFn = void (*)(void* context, float* rows, int64_t num_rows, int64_t columns);

enum class OpKind {
  kEmbed,
  kNorm,
  kLinear,
  kMoe,
  kGatedAdd,
  kRopeStore,
  kAttention,
  kActivate,
  kGather,
  kSample,
  kLayerWritten,
  kTap,
  kWaitFlag,
  kCollective,
  kQkNorm,
  kCast,
  kSoftcap
};

// Which rows of the step a buffer holds: all, those whose logits are needed, or those whose states the caller reads.
enum class RowKind { kStep, kLogits, kHidden };

struct Op {
  OpKind kind;
  int src = -1, dst = -1;
  bool accumulate = false;  // linear, norm: dst already holds the residual
  std::vector<WeightRef> weights;
  const float* bias = nullptr;
  std::shared_ptr<const void> bias_owner;
  int group = 0, layer = 0, q_heads = 0;
  float scale = 1, eps = 0;
  int index = 0;   // activation, vocabulary, layer, flag or rotary table (-1: none)
  RowKind gathered = RowKind::kStep;
  int window = 0;  // attention: 0 sees all
  float softcap = 0;
  int gate = -1;                      // gated_add: a second source
  std::vector<PackedWeight> experts;  // moe: `weights` after the router
  int top_k = 0;
  bool renormalise = false;
  CollectiveFn function = nullptr;
  void* context = nullptr;
};

// How the moe op picks experts, and what lies between their products.
struct MoeChoice {
  int top_k;
  bool renormalise;
  std::string act;
};

struct Buffer {
  int64_t columns, ld;  // ld in elements
  bool bf16, pinned;
  RowKind kind;
  int first = -1, last = -1;      // ops between which it lives
  int64_t rows = 0, offset = -1;  // capacity; place in the workspace
  Mapping own;                    // pinned: inputs and taps
  uint8_t* data = nullptr;
  int overwritten_by = -1;  // the op after which its memory belongs to another
  int64_t bytes() const { return rows * ld * (bf16 ? 2 : 4); }
};

constexpr int kMaxFlags = 64;

class Program {
 public:
  Program(const Kernels& kernels, Limits limits, std::vector<std::shared_ptr<KVPool>> pools,
          std::vector<RopeTables> ropes);
  ~Program();

  // Recording (recorder.cpp). Each returns the buffer it writes.
  int embed(const WeightRef& weight, float scale);
  int input(int64_t columns, bool bf16);
  int rms_norm(int src, const WeightRef& weight, float eps, int residual);
  int qk_norm(int qkv, int group, int layer, int q_heads, const WeightRef& q, const WeightRef& k, float eps);
  int cast(int src);
  int linear(int src, std::vector<WeightRef> weights, const WeightRef* bias, int residual, float scale);
  int moe(int src, const WeightRef& router, std::vector<WeightRef> experts, const MoeChoice& choice, int residual);
  int gated_add(int src, int gate, int residual);
  int rope_and_store(int qkv, int group, int layer, int q_heads, int rope);
  int attention(int q, int group, int layer, int q_heads, float scale, int window, float softcap,
                const WeightRef* sinks);
  int softcap(int src, float cap);
  int activate(int src, const std::string& act);
  int gather_rows(int src);
  int hidden(int src, const WeightRef& weight, float eps);
  void sample(int logits, int vocab);
  void layer_written(int layer);
  int tap(int src);
  void wait_flag(int index);
  void collective(int src, CollectiveFn function, void* context);

  // Running (execute.cpp).
  void run(const Batch& batch);
  void run_op(int index, const Batch& batch);
  // The ops from `index` on, of the step that ran last: what gather_rows reads is still there.
  void run_from(int index, const Batch& batch);
  void run_ops(int first, int last, const Batch& batch);
  void set_flag(int index, bool ready);

  // float [rows, columns] out of and into a buffer.
  void read(int buffer, int64_t rows, float* dst);
  void write(int buffer, int64_t rows, int64_t columns, const float* src);
  const Buffer& buffer(int index) const;

  void close();
  size_t workspace_bytes();
  const std::vector<Op>& ops() const { return ops_; }
  static const char* name(OpKind kind);
  const std::vector<SampleOut>& results() const { return results_; }
  const std::vector<double>& seconds() const { return seconds_; }
  std::atomic<int> layers_written{0};
  std::atomic<bool> timing{false};

 private:
  struct Step;
  friend struct Step;
  class Busy;

  int add_buffer(int64_t columns, bool bf16, bool padded, RowKind kind, bool pinned = false);
  int64_t max_rows(RowKind kind) const { return kind == RowKind::kLogits ? limits_.max_logit_rows : limits_.max_rows; }
  int gather(int src, RowKind kind);
  Buffer& use(int index);
  int record(Op op);
  void check_source(const Buffer& src, int64_t k, bool product) const;
  const KVPool& group(int index, int layer) const;
  MoeShape moe_shape(const Op& op) const;
  void plan();
  void place_buffers();
  void check(const Batch& batch) const;
  void check_sequences(const Batch& batch) const;
  void check_shared(const Batch& batch) const;
  void prepare_shared(const Batch& batch, size_t group);
  void prepare(const Batch& batch);
  void start(int first, int last, const Batch& batch);

  const Kernels& kernels_;
  const Limits limits_;
  const std::vector<std::shared_ptr<KVPool>> pools_;
  const std::vector<RopeTables> ropes_;
  std::unique_ptr<ThreadPool> threads_;
  std::vector<Op> ops_;
  std::vector<Buffer> buffers_;
  Mapping workspace_, attention_scratch_, sample_scratch_, moe_scratch_, integer_scratch_;
  bool planned_ = false;
  std::atomic<bool> busy_{false};
  // Of the step that runs.
  int64_t rows_ = 0, logit_rows_ = 0, hidden_rows_ = 0;
  std::vector<std::vector<SeqRun>> runs_;  // [group][sequence]
  std::vector<std::vector<SharedRun>> shared_runs_;
  std::vector<std::vector<SharedRow>> shared_rows_;
  std::vector<SampleRow> sample_rows_;
  std::vector<SampleOut> results_;
  std::vector<double> seconds_;
  std::atomic<uint32_t> flags_[kMaxFlags];
  std::atomic<int32_t> flag_sleepers_{0};
};

}  // namespace octavo
