// Recording: each method checks its operands, adds an op and the buffer that it writes.
#include <stdexcept>

#include "program.h"

namespace octavo {
namespace {

int64_t up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

void require(bool ok, const std::string& what) {
  if (!ok) throw std::invalid_argument(what);
}

std::string columns_text(int64_t have, int64_t want) {
  return "the buffer has " + std::to_string(have) + " columns, the op needs " + std::to_string(want);
}

}  // namespace

int Program::add_buffer(int64_t columns, bool bf16, bool padded, RowKind kind, bool pinned) {
  require(columns >= 1 && columns < (int64_t{1} << 30), "a buffer needs between 1 and 2^30 columns");
  Buffer b{};
  b.columns = columns;
  b.ld = padded ? up(columns, 32) : columns;
  b.bf16 = bf16;
  b.kind = kind;
  b.pinned = pinned;
  b.first = b.last = b.overwritten_by = -1;
  // Kernels may read (never write) whole groups of rows.
  b.rows = up(max_rows(kind), 32);
  if (pinned) {
    b.own = Mapping::zeroed((size_t)b.bytes() + 64);
    b.data = b.own.data();
  }
  buffers_.push_back(std::move(b));
  planned_ = false;
  return (int)buffers_.size() - 1;
}

Buffer& Program::use(int index) {
  require(index >= 0 && index < (int)buffers_.size(), "buffer " + std::to_string(index) + " does not exist");
  return buffers_[(size_t)index];
}

int Program::record(Op op) {
  require(!busy_, "the program is running");
  require(threads_ != nullptr, "the program is closed");
  const int at = (int)ops_.size();
  for (const int b : {op.src, op.gate, op.dst}) {
    if (b < 0) continue;
    Buffer& buffer = buffers_[(size_t)b];
    if (buffer.first < 0) buffer.first = at;
    buffer.last = at;
  }
  ops_.push_back(std::move(op));
  planned_ = false;
  return ops_.back().dst;
}

// `product`: the op reads whole blocks of 32 columns in the program's activation type.
void Program::check_source(const Buffer& src, int64_t k, bool product) const {
  require(src.columns == k, columns_text(src.columns, k));
  if (!product) {
    require(!src.bf16, "the op reads float rows; the buffer is bf16");
    return;
  }
  require(src.bf16 == !limits_.f32,
          "a product reads the output of rms_norm, activate or attention, or an input of "
          "the program's precision");
  require(src.ld >= up(k, 32), "a product's input must be padded to 32 columns");
}

const KVPool& Program::group(int index, int layer) const {
  require(index >= 0 && index < (int)pools_.size(), "group " + std::to_string(index) + " does not exist");
  const KVPool& pool = *pools_[(size_t)index];
  require(layer >= 0 && layer < pool.layers, "layer " + std::to_string(layer) + " is outside the group");
  return pool;
}

int Program::embed(const WeightRef& weight, float scale) {
  require(!weight.vector(), "embed needs a matrix");
  Op op{OpKind::kEmbed};
  op.weights = {weight};
  op.scale = scale;
  op.dst = add_buffer(weight.packed.k, false, false, RowKind::kStep);
  return record(std::move(op));
}

int Program::input(int64_t columns, bool bf16) { return add_buffer(columns, bf16, true, RowKind::kStep, true); }

int Program::rms_norm(int src, const WeightRef& weight, float eps, int residual) {
  require(weight.vector(), "rms_norm needs a float vector (kind \"vector\")");
  check_source(use(src), weight.packed.k, false);
  const RowKind kind = use(src).kind;
  Op op{OpKind::kNorm};
  op.src = src;
  op.weights = {weight};
  op.eps = eps;
  if (residual >= 0) {
    const Buffer& r = use(residual);
    require(residual != src, "a norm cannot be written over its own input");
    require(!r.bf16 && r.columns == weight.packed.k && r.kind == kind,
            "the residual must be float rows of as many columns");
    op.accumulate = true;
    op.dst = residual;
  } else {
    op.dst = add_buffer(weight.packed.k, !limits_.f32, true, kind);
  }
  return record(std::move(op));
}

int Program::qk_norm(int qkv, int index, int layer, int q_heads, const WeightRef& q, const WeightRef& k, float eps) {
  const KVPool& pool = group(index, layer);
  require(q_heads >= 1 && q_heads % pool.kv_heads == 0, "q_heads must be a multiple of the group's KV heads");
  check_source(use(qkv), (int64_t)(q_heads + 2 * pool.kv_heads) * pool.head_dim, false);
  const int64_t d = pool.head_dim;
  require(q.vector() && k.vector(), "qk_norm needs float vectors (kind \"vector\")");
  require((q.packed.k == d || q.packed.k == q_heads * d) && (k.packed.k == d || k.packed.k == pool.kv_heads * d),
          "a weight of qk_norm has as many values as one head, or as all heads");
  Op op{OpKind::kQkNorm};
  op.src = op.dst = qkv;
  op.group = index;
  op.layer = layer;
  op.q_heads = q_heads;
  op.weights = {q, k};
  op.eps = eps;
  return record(std::move(op));
}

int Program::cast(int src) {
  const Buffer& b = use(src);
  check_source(b, b.columns, false);
  const int64_t columns = b.columns;
  const RowKind kind = b.kind;
  Op op{OpKind::kCast};
  op.src = src;
  op.dst = add_buffer(columns, !limits_.f32, true, kind);
  return record(std::move(op));
}

int Program::softcap(int src, float cap) {
  const Buffer& b = use(src);
  check_source(b, b.columns, false);
  require(cap > 0, "a soft cap must be above 0");
  Op op{OpKind::kSoftcap};
  op.src = op.dst = src;
  op.softcap = cap;
  return record(std::move(op));
}

int Program::linear(int src, std::vector<WeightRef> weights, const WeightRef* bias, int residual, float scale) {
  require(!weights.empty(), "linear needs at least one weight");
  int64_t n = 0;
  for (const WeightRef& w : weights) {
    require(!w.vector(), "linear needs matrices, not a vector");
    check_source(use(src), w.packed.k, true);
    n += w.packed.n;
  }
  Op op{OpKind::kLinear};
  op.src = src;
  op.scale = scale;
  if (bias) {
    require(bias->vector() && bias->packed.k == n, "the bias must be a float vector of as many values as outputs");
    op.bias = bias->floats();
    op.bias_owner = bias->owner;
  }
  op.weights = std::move(weights);
  const RowKind kind = use(src).kind;
  if (residual >= 0) {
    const Buffer& r = use(residual);
    require(residual != src, "a product cannot be written over its own input");
    require(!r.bf16 && r.columns == n && r.kind == kind, "the residual must be float rows of as many columns");
    op.accumulate = true;
    op.dst = residual;
  } else {
    op.dst = add_buffer(n, false, false, kind);
  }
  return record(std::move(op));
}

int Program::rope_and_store(int qkv, int index, int layer, int q_heads, int rope) {
  const KVPool& pool = group(index, layer);
  require(q_heads >= 1 && q_heads % pool.kv_heads == 0, "q_heads must be a multiple of the group's KV heads");
  require(pool.f32 == limits_.f32, "the group's pages have another precision than the program");
  require(rope >= -1 && rope < (int)ropes_.size(), "rotary table " + std::to_string(rope) + " does not exist");
  require(rope < 0 || ropes_[(size_t)rope].half * 2 <= pool.head_dim, "the rotary table is wider than the head");
  check_source(use(qkv), (int64_t)(q_heads + 2 * pool.kv_heads) * pool.head_dim, false);
  require(use(qkv).kind == RowKind::kStep, "rope_and_store reads the step's rows, not gathered ones");
  Op op{OpKind::kRopeStore};
  op.src = qkv;
  op.group = index;
  op.layer = layer;
  op.q_heads = q_heads;
  op.index = rope;
  const int64_t head = limits_.f32 ? pool.head_dim : up(pool.head_dim, 32);
  op.dst = add_buffer(q_heads * head, !limits_.f32, true, RowKind::kStep);
  return record(std::move(op));
}

int Program::attention(int q, int index, int layer, int q_heads, float scale, int window, float softcap,
                       const WeightRef* sinks) {
  const KVPool& pool = group(index, layer);
  require(q_heads >= 1 && q_heads % pool.kv_heads == 0, "q_heads must be a multiple of the group's KV heads");
  require(pool.f32 == limits_.f32, "the group's pages have another precision than the program");
  const int64_t head = limits_.f32 ? pool.head_dim : up(pool.head_dim, 32);
  const Buffer& src = use(q);
  require(src.columns == q_heads * head && src.bf16 == !limits_.f32 && src.kind == RowKind::kStep,
          "attention reads the output of rope_and_store");
  require(window >= 0 && softcap >= 0, "a window and a soft cap must be above 0");
  require(!sinks || (sinks->vector() && sinks->packed.k == q_heads),
          "sinks must be a float vector of one value a head");
  Op op{OpKind::kAttention};
  op.src = q;
  op.group = index;
  op.layer = layer;
  op.q_heads = q_heads;
  op.scale = scale;
  op.window = window;
  op.softcap = softcap;
  if (sinks) op.weights = {*sinks};
  op.dst = add_buffer((int64_t)q_heads * pool.head_dim, !limits_.f32, true, RowKind::kStep);
  return record(std::move(op));
}

int Program::activate(int src, const std::string& act) {
  require(act == "silu" || act == "gelu", "act must be \"silu\" or \"gelu\"");
  const Buffer& b = use(src);
  require(b.columns % 2 == 0, "activate reads gate and up side by side: an even number of columns");
  check_source(b, b.columns, false);
  const int64_t columns = b.columns / 2;
  const RowKind kind = b.kind;
  Op op{OpKind::kActivate};
  op.src = src;
  op.index = act == "gelu";
  op.dst = add_buffer(columns, !limits_.f32, true, kind);
  return record(std::move(op));
}

int Program::gather(int src, RowKind kind) {
  const Buffer& b = use(src);
  require(!b.bf16 && b.kind == RowKind::kStep, "rows are gathered from float rows of the step");
  const int64_t columns = b.columns;
  Op op{OpKind::kGather};
  op.src = src;
  op.gathered = kind;
  op.dst = add_buffer(columns, false, false, kind);
  return record(std::move(op));
}

int Program::gather_rows(int src) { return gather(src, RowKind::kLogits); }

// Nothing reads the result, so it lives to the step's end; float rows, for the caller and no product reads them.
int Program::hidden(int src, const WeightRef& weight, float eps) {
  require(weight.vector(), "hidden needs a float vector (kind \"vector\")");
  check_source(use(src), weight.packed.k, false);
  Op op{OpKind::kNorm};
  op.src = gather(src, RowKind::kHidden);
  op.weights = {weight};
  op.eps = eps;
  op.dst = add_buffer(weight.packed.k, false, false, RowKind::kHidden);
  return record(std::move(op));
}

void Program::sample(int logits, int vocab) {
  const Buffer& b = use(logits);
  require(!b.bf16 && b.kind == RowKind::kLogits, "sample reads logits of gathered rows");
  require(vocab >= 1 && vocab <= b.columns, "vocab must lie between 1 and the logits' columns");
  for (const Op& other : ops_) require(other.kind != OpKind::kSample, "a program samples once");
  Op op{OpKind::kSample};
  op.src = logits;
  op.index = vocab;
  record(std::move(op));
}

void Program::layer_written(int layer) {
  require(layer >= 0, "layer must be at least 0");
  Op op{OpKind::kLayerWritten};
  op.index = layer;
  record(std::move(op));
}

int Program::tap(int src) {
  const Buffer& b = use(src);
  const int64_t columns = b.columns;
  const bool bf16 = b.bf16, padded = b.ld != columns;
  const RowKind kind = b.kind;
  Op op{OpKind::kTap};
  op.src = src;
  op.dst = add_buffer(columns, bf16, padded, kind, true);
  return record(std::move(op));
}

void Program::wait_flag(int index) {
  require(index >= 0 && index < kMaxFlags, "a flag's index lies between 0 and 63");
  Op op{OpKind::kWaitFlag};
  op.index = index;
  record(std::move(op));
}

void Program::collective(int src, CollectiveFn function, void* context) {
  const Buffer& b = use(src);
  require(!b.bf16 && b.ld == b.columns, "a collective works on float rows without padding");
  require(function != nullptr, "the collective's function is null");
  Op op{OpKind::kCollective};
  op.src = src;
  op.function = function;
  op.context = context;
  record(std::move(op));
}

}  // namespace octavo
