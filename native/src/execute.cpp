// Running: a batch is checked, sizes are read from it, and every thread walks the ops with a barrier after each.
#include <chrono>
#include <cstring>
#include <stdexcept>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "program.h"

namespace octavo {
namespace {

void require(bool ok, const char* what) {
  if (!ok) throw std::invalid_argument(what);
}

[[noreturn]] void refuse(const char* what, int64_t have, const char* limit, int64_t bound) {
  throw std::invalid_argument(std::string(what) + " " + std::to_string(have) + " " + limit + " " +
                              std::to_string(bound));
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// The floating-point mode of the contract for as long as it lives: nearest even, denormals flushed, nothing traps.
class FloatMode {
 public:
#if defined(__x86_64__)
  FloatMode() : old_(_mm_getcsr()) { _mm_setcsr(0x1f80 | 0x8040); }
  ~FloatMode() { _mm_setcsr(old_); }

 private:
  unsigned old_;
#elif defined(__aarch64__)
  FloatMode() {
    __asm__ volatile("mrs %0, fpcr" : "=r"(old_));
    __asm__ volatile("msr fpcr, %0" : : "r"(uint64_t{1} << 24));
  }
  ~FloatMode() { __asm__ volatile("msr fpcr, %0" : : "r"(old_)); }

 private:
  uint64_t old_;
#endif
};

}  // namespace

// Marks the program as running; one step at a time.
class Program::Busy {
 public:
  explicit Busy(Program& p) : p_(p) { require(!p_.busy_.exchange(true), "the program is already running"); }
  ~Busy() { p_.busy_.store(false); }

 private:
  Program& p_;
};

void Program::check_sequences(const Batch& batch) const {
  require(batch.tokens.empty() || batch.tables.size() == pools_.size(), "set_sequences needs one block table a group");
  int64_t row = 0;
  for (size_t s = 0; s < batch.sequences.size(); s++) {
    const Batch::Sequence& q = batch.sequences[s];
    require(q.row == row && q.count >= 1, "sequences must cover the step's rows in order, each at least one");
    row += q.count;
    require(q.start >= 0 && q.store_from >= 0, "start and store_from must be at least 0");
    const int64_t end = (int64_t)q.start + q.count;
    if (end > limits_.max_positions) refuse("position", end - 1, "is not below max_positions", limits_.max_positions);
    for (size_t g = 0; g < pools_.size(); g++) {
      const Batch::Table& table = batch.tables[g];
      const int64_t blocks = (end + pools_[g]->block_size - 1) / pools_[g]->block_size;
      if (blocks > table.width) refuse("a sequence needs", blocks, "blocks; its block table holds", table.width);
      const int32_t* ids = table.ids.data() + (int64_t)s * table.width;
      for (int64_t b = 0; b < blocks; b++) {
        if (ids[b] < 0 || ids[b] >= pools_[g]->num_blocks) {
          refuse("block id", ids[b], "is outside the pool of", pools_[g]->num_blocks);
        }
      }
    }
  }
  require(row == (int64_t)batch.tokens.size(), "sequences must cover the step's rows in order, each at least one");
}

void Program::check(const Batch& batch) const {
  const int64_t rows = (int64_t)batch.tokens.size(), logit_rows = (int64_t)batch.logit_rows.size();
  if (rows > limits_.max_rows) refuse("the step's rows,", rows, "exceed max_rows,", limits_.max_rows);
  if (logit_rows > limits_.max_logit_rows) {
    refuse("the logit rows,", logit_rows, "exceed max_logit_rows,", limits_.max_logit_rows);
  }
  for (const int32_t r : batch.logit_rows) {
    if (r < 0 || r >= rows) refuse("logit row", r, "is outside the step's rows,", rows);
  }
  const int64_t hidden_rows = (int64_t)batch.hidden_rows.size();
  if (hidden_rows > rows) refuse("the hidden rows,", hidden_rows, "exceed the step's rows,", rows);
  for (const int32_t r : batch.hidden_rows) {
    if (r < 0 || r >= rows) refuse("hidden row", r, "is outside the step's rows,", rows);
  }
  bool sequences = false;
  for (const Op& op : ops_) {
    if (op.kind == OpKind::kEmbed) {
      const int vocab = op.weights[0].packed.n;
      for (const int32_t id : batch.tokens) {
        if (id < 0 || id >= vocab) refuse("token id", id, "is outside the vocabulary of", vocab);
      }
    }
    sequences = sequences || op.kind == OpKind::kRopeStore || op.kind == OpKind::kAttention;
  }
  if (sequences) {
    check_sequences(batch);
    check_shared(batch);
  }
  require(batch.samples.empty() || batch.samples.size() == batch.logit_rows.size(),
          "set_samples needs one sample a logit row, or none");
}

// Everything that the threads read of the step, in the form that kernels take.
void Program::prepare(const Batch& batch) {
  check(batch);
  rows_ = (int64_t)batch.tokens.size();
  logit_rows_ = (int64_t)batch.logit_rows.size();
  hidden_rows_ = (int64_t)batch.hidden_rows.size();
  for (size_t g = 0; g < runs_.size(); g++) {
    runs_[g].clear();
    shared_runs_[g].clear();
    if (g >= batch.tables.size()) continue;
    for (size_t s = 0; s < batch.sequences.size(); s++) {
      const Batch::Sequence& q = batch.sequences[s];
      const int32_t* table = batch.tables[g].ids.data() + (int64_t)s * batch.tables[g].width;
      runs_[g].push_back({q.row, q.count, q.start, q.store_from, table});
    }
    prepare_shared(batch, g);
  }
  int vocab = 0;
  for (const Op& op : ops_) {
    if (op.kind == OpKind::kSample) vocab = op.index;
  }
  sample_rows_.clear();
  if (vocab > 0) {
    for (const SampleSpec* s : batch.samples) sample_rows_.push_back(s->checked(vocab));
  }
}

// One run of ops [first, last) by one member of the team.
struct Program::Step {
  Program& p;
  const Batch& batch;
  int first, last;

  static void job(void* self, const Team& team) { ((const Step*)self)->run(team); }

  void run(const Team& team) const {
    const FloatMode mode;
    p.kernels_.enter();
    const bool timed = team.rank == 0 && p.timing;
    double before = timed ? now() : 0;
    for (int i = first; i < last; i++) {
      const Op& op = p.ops_[(size_t)i];
      execute(op, team);
      // What follows the last op is the pool's own barrier.
      if (i + 1 < last && op.kind != OpKind::kLayerWritten) team.barrier();
      if (!timed) continue;
      const double after = now();
      p.seconds_[(size_t)i] = after - before;
      before = after;
    }
    p.kernels_.leave();
  }

  int32_t rows(const Buffer& b) const {
    return (int32_t)(b.kind == RowKind::kStep ? p.rows_ : b.kind == RowKind::kLogits ? p.logit_rows_ : p.hidden_rows_);
  }
  Buffer& at(int index) const { return p.buffers_[(size_t)index]; }

  void execute(const Op& op, const Team& team) const {
    switch (op.kind) {
      case OpKind::kEmbed:
        return embed(op, team);
      case OpKind::kNorm:
        return norm(op, team);
      case OpKind::kLinear:
        return linear(op, team);
      case OpKind::kMoe:
        return moe(op, team);
      case OpKind::kGatedAdd:
        return gated_add(op, team);
      case OpKind::kRopeStore:
        return rope_store(op, team);
      case OpKind::kAttention:
        return attention(op, team);
      case OpKind::kActivate:
        return activate(op, team);
      case OpKind::kGather:
        return gather(op, team);
      case OpKind::kSample:
        return sample(op, team);
      case OpKind::kLayerWritten:
        // The barrier before this op made the layer's pages visible.
        if (team.rank == 0) p.layers_written.store(op.index + 1, std::memory_order_release);
        return;
      case OpKind::kTap:
        return tap(op, team);
      case OpKind::kWaitFlag:
        return wait(op, team);
      case OpKind::kQkNorm:
        return qk_norm(op, team);
      case OpKind::kCast:
        return cast(op, team);
      case OpKind::kSoftcap:
        return softcap(op, team);
      case OpKind::kCollective:
        if (team.rank == 0) op.function(op.context, (float*)at(op.src).data, rows(at(op.src)), at(op.src).columns);
        return;
    }
  }

  void embed(const Op& op, const Team& team) const {
    const Buffer& d = at(op.dst);
    EmbedArgs a{};
    a.weight = &op.weights[0].packed;
    a.ids = batch.tokens.data();
    a.dst = (float*)d.data;
    a.rows = rows(d);
    a.ld = (int32_t)d.ld;
    a.f32 = p.limits_.f32;
    a.scale = op.scale;
    p.kernels_.embed(a, team);
  }

  void norm(const Op& op, const Team& team) const {
    const Buffer &s = at(op.src), &d = at(op.dst);
    NormArgs a{};
    a.src = (const float*)s.data;
    a.weight = op.weights[0].floats();
    a.dst = d.data;
    a.rows = rows(d);
    a.cols = (int32_t)d.columns;
    a.ld_src = (int32_t)s.ld;
    a.ld_dst = (int32_t)d.ld;
    a.eps = op.eps;
    a.dst_f32 = !d.bf16;
    a.residual = op.accumulate ? (const float*)d.data : nullptr;
    p.kernels_.rms_norm(a, team);
  }

  void qk_norm(const Op& op, const Team& team) const {
    const Buffer& d = at(op.dst);
    const KVPool& pool = *p.pools_[(size_t)op.group];
    QkNormArgs a{};
    a.qkv = (float*)d.data;
    a.q_weight = op.weights[0].floats();
    a.k_weight = op.weights[1].floats();
    a.rows = rows(d);
    a.ld = (int32_t)d.ld;
    a.q_cols = op.weights[0].packed.k;
    a.k_cols = op.weights[1].packed.k;
    a.q_parts = op.q_heads * pool.head_dim / a.q_cols;
    a.k_parts = pool.kv_heads * pool.head_dim / a.k_cols;
    a.eps = op.eps;
    p.kernels_.qk_norm(a, team);
  }

  void cast(const Op& op, const Team& team) const {
    const Buffer &s = at(op.src), &d = at(op.dst);
    CastArgs a{};
    a.src = (const float*)s.data;
    a.dst = d.data;
    a.rows = rows(d);
    a.cols = (int32_t)d.columns;
    a.ld_src = (int32_t)s.ld;
    a.ld_dst = (int32_t)d.ld;
    a.dst_f32 = !d.bf16;
    p.kernels_.cast(a, team);
  }

  void softcap(const Op& op, const Team& team) const {
    const Buffer& d = at(op.dst);
    const SoftcapArgs a{(float*)d.data, rows(d), (int32_t)d.columns, (int32_t)d.ld, op.softcap};
    p.kernels_.softcap(a, team);
  }

  void linear(const Op& op, const Team& team) const {
    const Buffer &s = at(op.src), &d = at(op.dst);
    int64_t offset = 0;
    const WeightRef* before = nullptr;
    for (const WeightRef& w : op.weights) {
      LinearArgs a{};
      a.integer = p.limits_.integer;
      a.converted = p.integer_scratch_.data();
      a.is_converted = before && before->packed.kind == w.packed.kind;
      // Rows are converted anew in the same place: nobody may still read them.
      if (a.integer && before && !a.is_converted) team.barrier();
      before = &w;
      a.weight = &w.packed;
      a.src = s.data;
      a.bias = op.bias ? op.bias + offset : nullptr;
      a.dst = (float*)d.data + offset;
      a.residual = op.accumulate ? a.dst : nullptr;
      a.rows = rows(d);
      a.ld_src = (int32_t)s.ld;
      a.ld_dst = (int32_t)d.ld;
      a.src_f32 = !s.bf16;
      a.scale = op.scale;
      p.kernels_.linear(a, team);
      offset += w.packed.n;
    }
  }

  void moe(const Op& op, const Team& team) const {
    const Buffer &s = at(op.src), &d = at(op.dst);
    const MoeShape shape = p.moe_shape(op);
    MoeArgs a{};
    a.router = &op.weights[0].packed;
    a.experts = op.experts.data();
    a.src = s.data;
    a.dst = (float*)d.data;
    a.residual = op.accumulate ? a.dst : nullptr;
    a.rows = rows(d);
    a.ld_src = (int32_t)s.ld;
    a.ld_dst = (int32_t)d.ld;
    a.top_k = op.top_k;
    a.chunk = (int32_t)shape.rows;
    a.act = op.index;
    a.renormalise = op.renormalise;
    a.f32 = !s.bf16;
    a.integer = p.limits_.integer;
    moe_layout(shape, p.moe_scratch_.data(), &a.scratch);
    p.kernels_.moe(a, team);
  }

  void gated_add(const Op& op, const Team& team) const {
    const Buffer &s = at(op.src), &g = at(op.gate), &d = at(op.dst);
    GatedAddArgs a{};
    a.src = (const float*)s.data;
    a.gate = (const float*)g.data;
    a.dst = (float*)d.data;
    a.rows = rows(d);
    a.cols = (int32_t)d.columns;
    a.ld_src = (int32_t)s.ld;
    a.ld_gate = (int32_t)g.ld;
    a.ld_dst = (int32_t)d.ld;
    p.kernels_.gated_add(a, team);
  }

  void rope_store(const Op& op, const Team& team) const {
    const Buffer &s = at(op.src), &d = at(op.dst);
    const std::vector<SeqRun>& runs = p.runs_[(size_t)op.group];
    RopeStoreArgs a{};
    a.qkv = (const float*)s.data;
    a.dst_q = d.data;
    if (op.index >= 0) {
      const RopeTables& rope = p.ropes_[(size_t)op.index];
      a.cos = rope.cos;
      a.sin = rope.sin;
      a.rotary = (int32_t)rope.half * 2;
    }
    a.seqs = runs.data();
    a.num_seqs = (int32_t)runs.size();
    a.q_heads = op.q_heads;
    a.ld_qkv = (int32_t)s.ld;
    a.ld_q = (int32_t)d.ld;
    a.kv = p.pools_[(size_t)op.group]->layer(op.layer);
    p.kernels_.rope_store(a, team);
  }

  void attention(const Op& op, const Team& team) const {
    const Buffer &s = at(op.src), &d = at(op.dst);
    const std::vector<SeqRun>& runs = p.runs_[(size_t)op.group];
    clear_padding(d, team);
    AttentionArgs a{};
    a.q = s.data;
    a.dst = d.data;
    a.seqs = runs.data();
    a.num_seqs = (int32_t)runs.size();
    a.q_heads = op.q_heads;
    a.ld_q = (int32_t)s.ld;
    a.ld_dst = (int32_t)d.ld;
    a.scale = op.scale;
    a.window = op.window;
    a.softcap = op.softcap;
    a.sinks = op.weights.empty() ? nullptr : op.weights[0].floats();
    a.naive = p.limits_.naive;
    a.scratch = p.attention_scratch_.data();
    a.kv = p.pools_[(size_t)op.group]->layer(op.layer);
    const std::vector<SharedRun>& shared = p.shared_runs_[(size_t)op.group];
    a.shared = shared.data();
    a.shared_rows = p.shared_rows_[(size_t)op.group].data();
    a.num_shared = op.window > 0 || a.naive ? 0 : (int32_t)shared.size();
    p.kernels_.attention(a, team);
  }

  // Memory is shared between buffers, so padding is cleared each time.
  void clear_padding(const Buffer& b, const Team& team) const {
    const int64_t size = b.bf16 ? 2 : 4, pad = b.ld - b.columns;
    if (pad == 0) return;
    int64_t begin, end;
    team.range(rows(b), &begin, &end);
    for (int64_t r = begin; r < end; r++) std::memset(b.data + (r * b.ld + b.columns) * size, 0, (size_t)(pad * size));
  }

  void activate(const Op& op, const Team& team) const {
    const Buffer &s = at(op.src), &d = at(op.dst);
    ActArgs a{};
    a.src = (const float*)s.data;
    a.dst = d.data;
    a.rows = rows(d);
    a.cols = (int32_t)d.columns;
    a.ld_src = (int32_t)s.ld;
    a.ld_dst = (int32_t)d.ld;
    a.dst_f32 = !d.bf16;
    a.act = op.index;
    p.kernels_.activate(a, team);
  }

  void gather(const Op& op, const Team& team) const {
    const Buffer &s = at(op.src), &d = at(op.dst);
    GatherArgs a{};
    a.src = (const float*)s.data;
    a.index = (op.gathered == RowKind::kLogits ? batch.logit_rows : batch.hidden_rows).data();
    a.dst = (float*)d.data;
    a.rows = rows(d);
    a.cols = (int32_t)d.columns;
    a.ld_src = (int32_t)s.ld;
    a.ld_dst = (int32_t)d.ld;
    p.kernels_.gather(a, team);
  }

  void sample(const Op& op, const Team& team) const {
    if (p.sample_rows_.empty()) return;
    const Buffer& s = at(op.src);
    SampleArgs a{};
    a.logits = (const float*)s.data;
    a.rows = (int32_t)p.sample_rows_.size();
    a.ld = (int32_t)s.ld;
    a.vocab = op.index;
    a.params = p.sample_rows_.data();
    a.out = p.results_.data();
    a.scratch = (float*)p.sample_scratch_.data();
    p.kernels_.sample(a, team);
  }

  void tap(const Op& op, const Team& team) const {
    const Buffer &s = at(op.src), &d = at(op.dst);
    const int64_t row = s.ld * (s.bf16 ? 2 : 4);
    int64_t begin, end;
    team.range(rows(s), &begin, &end);
    if (end > begin) std::memcpy(d.data + begin * row, s.data + begin * row, (size_t)((end - begin) * row));
  }

  void wait(const Op& op, const Team& team) const {
    std::atomic<uint32_t>& flag = p.flags_[op.index];
    if (team.rank == 0 && flag.load(std::memory_order_acquire) == 0) wait_change(flag, 0, p.flag_sleepers_, true);
  }
};

void Program::start(int first, int last, const Batch& batch) {
  const Busy busy(*this);
  require(threads_ != nullptr, "the program is closed");
  plan();
  prepare(batch);
  if (first == 0) layers_written.store(0, std::memory_order_relaxed);
  bool samples = false;
  for (int i = first; i < last; i++) samples = samples || ops_[(size_t)i].kind == OpKind::kSample;
  if (first == 0 || samples) results_.assign(samples ? sample_rows_.size() : 0, SampleOut{});
  Step step{*this, batch, first, last};
  threads_->run(&Step::job, &step);
}

void Program::run(const Batch& batch) { start(0, (int)ops_.size(), batch); }

void Program::run_op(int index, const Batch& batch) {
  require(index >= 0 && index < (int)ops_.size(), "op index is outside the program");
  start(index, index + 1, batch);
}

void Program::run_from(int index, const Batch& batch) {
  require(index >= 0 && index < (int)ops_.size(), "op index is outside the program");
  require(rows_ == (int64_t)batch.tokens.size(), "the batch is not that of the last run");
  start(index, (int)ops_.size(), batch);
}

void Program::run_ops(int first, int last, const Batch& batch) {
  require(first >= 0 && first <= last && last <= (int)ops_.size(), "ops lie outside the program");
  start(first, last, batch);
}

void Program::set_flag(int index, bool ready) {
  require(index >= 0 && index < kMaxFlags, "a flag's index lies between 0 and 63");
  flags_[index].store(ready ? 1 : 0, std::memory_order_seq_cst);
  if (ready) wake_all(flags_[index], flag_sleepers_);
}

}  // namespace octavo
