// The moe op and gated_add: how they are recorded, and where the moe op's arrays lie in its memory.
#include <stdexcept>

#include "program.h"

namespace octavo {
namespace {

constexpr int64_t kMostBytes = int64_t{128} << 20;

int64_t up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

int64_t row_bytes(const MoeShape& s) {
  const int64_t size = s.f32 ? 4 : 2;
  const int64_t pair = (up(s.hidden, 32) + up(s.inner, 32)) * size + s.hidden * 4 + 16;
  return s.top_k * pair + up(s.experts, 16) * 4;
}

void require(bool ok, const std::string& what) {
  if (!ok) throw std::invalid_argument(what);
}

std::string shape_text(const PackedWeight& w) { return std::to_string(w.n) + " by " + std::to_string(w.k); }

void check_expert(const WeightRef& weight, int64_t n, int64_t k, const char* part) {
  require(!weight.vector() && weight.packed.n == n && weight.packed.k == k,
          std::string("an expert's ") + part + " is " + shape_text(weight.packed) +
              "; the first expert and the router need " + std::to_string(n) + " by " + std::to_string(k));
}

}  // namespace

int64_t moe_chunk_rows(const MoeShape& s) {
  constexpr int64_t least = 16;
  const int64_t most = kMostBytes / row_bytes(s);
  const int64_t rows = most < least ? least : most;
  return rows < s.rows ? rows : s.rows;
}

size_t moe_layout(const MoeShape& s, uint8_t* base, MoeScratch* scratch) {
  const int64_t size = s.f32 ? 4 : 2, pairs = s.rows * s.top_k;
  int64_t at = 0;
  const auto take = [&](int64_t bytes) {
    uint8_t* here = base ? base + at : nullptr;
    at += up(bytes, 64);
    return (void*)here;
  };
  MoeScratch m{};
  m.scores = (float*)take(s.rows * up(s.experts, 16) * 4);
  m.weights = (float*)take(pairs * 4);
  m.ids = (int32_t*)take(pairs * 4);
  m.place = (int32_t*)take(pairs * 4);
  m.source = (int32_t*)take(pairs * 4);
  m.ends = (int32_t*)take((s.experts + 1) * 4);
  m.blocks = (MoeBlock*)take((s.experts + pairs / OCT_MOE_ROWS + 1) * (int64_t)sizeof(MoeBlock));
  m.num_blocks = (int32_t*)take(4);
  // Kernels may read (never write) whole groups of rows.
  m.gathered = take((pairs + 32) * up(s.hidden, 32) * size);
  m.inner = take((pairs + 32) * up(s.inner, 32) * size);
  m.out = (float*)take(pairs * s.hidden * 4);
  m.own = (float*)take(s.threads * OCT_MOE_ROWS * 2 * OCT_MOE_COLUMNS * 4);
  if (scratch) *scratch = m;
  return (size_t)at;
}

MoeShape Program::moe_shape(const Op& op) const {
  MoeShape s{};
  s.threads = limits_.threads;
  s.rows = max_rows(buffer(op.dst).kind);
  s.experts = op.weights[0].packed.n;
  s.top_k = op.top_k;
  s.hidden = op.weights[0].packed.k;
  s.inner = op.experts[0].n;
  s.f32 = limits_.f32;
  s.rows = moe_chunk_rows(s);
  return s;
}

int Program::moe(int src, const WeightRef& router, std::vector<WeightRef> experts, const MoeChoice& choice,
                 int residual) {
  const int64_t hidden = router.packed.k, count = router.packed.n;
  require(!router.vector() && count >= 2, "moe needs a router of at least two experts");
  require((int64_t)experts.size() == 3 * count,
          "moe needs gate, up and down of each of the router's " + std::to_string(count) + " experts");
  require(choice.top_k >= 1 && choice.top_k <= count, "top_k must lie between 1 and the number of experts");
  require(choice.act == "silu" || choice.act == "gelu", "act must be \"silu\" or \"gelu\"");
  check_source(use(src), hidden, true);
  const int64_t inner = experts[0].packed.n;
  Op op{OpKind::kMoe};
  for (size_t i = 0; i < experts.size(); i += 3) {
    check_expert(experts[i], inner, hidden, "gate");
    check_expert(experts[i + 1], inner, hidden, "up");
    check_expert(experts[i + 2], hidden, inner, "down");
  }
  op.src = src;
  op.weights = {router};
  for (WeightRef& w : experts) {
    op.experts.push_back(w.packed);
    op.weights.push_back(std::move(w));
  }
  op.top_k = choice.top_k;
  op.renormalise = choice.renormalise;
  op.index = choice.act == "gelu";
  const RowKind kind = use(src).kind;
  if (residual >= 0) {
    const Buffer& r = use(residual);
    require(!r.bf16 && r.columns == hidden && r.kind == kind,
            "the residual must be float rows of as many columns");
    op.accumulate = true;
    op.dst = residual;
  } else {
    op.dst = add_buffer(hidden, false, false, kind);
  }
  return record(std::move(op));
}

int Program::gated_add(int src, int gate, int residual) {
  const Buffer &s = use(src), &g = use(gate), &r = use(residual);
  require(!s.bf16 && !g.bf16 && !r.bf16, "gated_add reads float rows");
  require(g.columns == 1, "the gate must have one column; it has " + std::to_string(g.columns));
  require(s.columns == r.columns,
          "gated_add adds " + std::to_string(s.columns) + " columns to " + std::to_string(r.columns));
  require(s.kind == r.kind && g.kind == r.kind, "gated_add needs rows of one kind");
  require(src != residual && gate != residual, "gated_add cannot write over its own input");
  Op op{OpKind::kGatedAdd};
  op.src = src;
  op.gate = gate;
  op.dst = residual;
  return record(std::move(op));
}

}  // namespace octavo
