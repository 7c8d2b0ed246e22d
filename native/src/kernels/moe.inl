// moe: a router, then each row through the experts that it chose (docs/numerics.md). The (row, slot) pairs are grouped
// by expert, so that an expert's weights are read once for all its rows, and not at all where no row chose it. A unit
// of work is (block of one expert's rows, piece of columns), run by one thread on the kernels of `linear`; threads
// meet at a fixed number of barriers, whatever the number of experts. Rows go through in chunks that bound the memory.

constexpr Team kSolo = {0, 1, nullptr};
constexpr int kMoePiece = OCT_MOE_COLUMNS / 16;  // column blocks in a piece, at most

// Column blocks [begin, end) of a packed matrix.
OCT_INLINE PackedWeight moe_columns(const PackedWeight& w, int64_t begin, int64_t end) {
  const int64_t last = 16 * end < w.n ? 16 * end : w.n;
  return {w.kind, (int32_t)(last - 16 * begin), w.k, block_data(w, begin)};
}

// Logits of one row to probabilities, in place.
static void moe_softmax(float* p, int experts) {
  const float nothing = -__builtin_inff();
  F16 top = f_set(nothing), lanes = f_zero();
  for (int c = 0; c < experts; c += 16) top = f_max(top, f_load_n(p + c, experts - c, nothing));
  const F16 greatest = f_set(f_hmax(top));
  for (int c = 0; c < experts; c += 16) {
    const F16 e = v_exp(f_sub(f_load_n(p + c, experts - c, nothing), greatest));
    f_store_n(p + c, e, experts - c);
    lanes = f_add(lanes, e);
  }
  const F16 sum = f_set(f_sum(lanes));
  for (int c = 0; c < experts; c += 16) f_store_n(p + c, f_div(f_load_n(p + c, experts - c, 0.0f), sum), experts - c);
}

// The greatest probability of each slot, ties to the lowest id; one that is taken becomes -1. NaN still gives valid
// ids.
static void moe_choose(const MoeArgs& a, int row) {
  const int experts = a.router->n;
  float* p = a.scratch.scores + (int64_t)row * ((experts + 15) / 16 * 16);
  float* weight = a.scratch.weights + (int64_t)row * a.top_k;
  int32_t* id = a.scratch.ids + (int64_t)row * a.top_k;
  moe_softmax(p, experts);
  float sum = 0.0f;
  for (int s = 0; s < a.top_k; s++) {
    int best = -1;
    for (int e = 0; e < experts; e++)
      if (p[e] != -1.0f && (best < 0 || p[e] > p[best])) best = e;
    id[s] = best;
    weight[s] = p[best];
    sum = sum + p[best];
    p[best] = -1.0f;
  }
  if (!a.renormalise) return;
  for (int s = 0; s < a.top_k; s++) weight[s] = weight[s] / sum;
}

// Groups the pairs by expert, in the order of rows and slots, and splits each expert's into blocks. One thread.
static void moe_group(const MoeArgs& a, int rows) {
  const MoeScratch& s = a.scratch;
  const int experts = a.router->n, pairs = rows * a.top_k;
  __builtin_memset(s.ends, 0, (size_t)(experts + 1) * sizeof(int32_t));
  for (int i = 0; i < pairs; i++) s.ends[s.ids[i] + 1]++;
  for (int e = 0; e < experts; e++) s.ends[e + 1] += s.ends[e];
  for (int i = 0; i < pairs; i++) {
    s.place[i] = s.ends[s.ids[i]]++;  // from the expert's first pair to its end
    s.source[s.place[i]] = i / a.top_k;
  }
  int32_t count = 0;
  for (int e = 0; e < experts; e++) {
    const int first = e == 0 ? 0 : s.ends[e - 1], left = s.ends[e] - first;
    const int parts = (left + OCT_MOE_ROWS - 1) / OCT_MOE_ROWS;
    for (int i = 0; i < parts; i++) {
      const int begin = left * i / parts, end = left * (i + 1) / parts;
      s.blocks[count++] = {e, first + begin, end - begin};
    }
  }
  *s.num_blocks = count;
}

struct MoeChunk {
  const uint8_t* src;  // the chunk's first row
  int64_t row;
  int rows;
  int64_t size;  // bytes of an activation
  int64_t ld, ld_inner;
};

static void moe_gather(const MoeArgs& a, const MoeChunk& c, const Team& team) {
  const int64_t bytes = c.ld * c.size;
  int64_t begin, end;
  team.range((int64_t)c.rows * a.top_k, &begin, &end);
  for (int64_t i = begin; i < end; i++)
    __builtin_memcpy((uint8_t*)a.scratch.gathered + i * bytes, c.src + a.scratch.source[i] * a.ld_src * c.size,
                     (size_t)bytes);
}

OCT_INLINE void moe_product(const MoeArgs& a, const PackedWeight& weight, const void* src, int64_t ld_src, int rows,
                            float* dst, int64_t ld_dst) {
  LinearArgs l = {};
  l.weight = &weight;
  l.src = src;
  l.dst = dst;
  l.rows = rows;
  l.ld_src = (int32_t)ld_src;
  l.ld_dst = (int32_t)ld_dst;
  l.src_f32 = a.f32;
  l.integer = a.integer;
  k_linear(l, kSolo);
}

// act(gate) * up of column blocks [begin, end), for the rows of one block. `own` is the thread's memory.
static void moe_inner(const MoeArgs& a, const MoeChunk& c, const MoeBlock& b, int64_t begin, int64_t end, float* own) {
  const PackedWeight* expert = a.experts + 3 * (int64_t)b.expert;
  // The pairs of a single row are that row.
  const void* src = c.rows == 1 ? c.src : (const uint8_t*)a.scratch.gathered + b.first * c.ld * c.size;
  const PackedWeight gate = moe_columns(expert[0], begin, end), up = moe_columns(expert[1], begin, end);
  const int64_t columns = gate.n;
  moe_product(a, gate, src, c.ld, b.rows, own, 2 * columns);
  moe_product(a, up, src, c.ld, b.rows, own + columns, 2 * columns);
  ActArgs act = {};
  act.src = own;
  act.dst = (uint8_t*)a.scratch.inner + (b.first * c.ld_inner + 16 * begin) * c.size;
  act.rows = b.rows;
  act.cols = (int32_t)columns;
  act.ld_src = (int32_t)(2 * columns);
  act.ld_dst = (int32_t)c.ld_inner;
  act.dst_f32 = a.f32;
  act.act = a.act;
  k_activate(act, kSolo);
}

static void moe_down(const MoeArgs& a, const MoeChunk& c, const MoeBlock& b, int64_t begin, int64_t end) {
  const PackedWeight& down = a.experts[3 * (int64_t)b.expert + 2];
  const void* src = (const uint8_t*)a.scratch.inner + b.first * c.ld_inner * c.size;
  float* dst = a.scratch.out + (int64_t)b.first * down.n + 16 * begin;
  moe_product(a, moe_columns(down, begin, end), src, c.ld_inner, b.rows, dst, down.n);
}

// Column blocks in a piece: even, since an activation's padding is cleared in steps of 32 columns, and few enough that
// the threads come out even.
OCT_INLINE int64_t moe_piece(int64_t column_blocks, int64_t row_blocks, int threads) {
  const int64_t even = column_blocks * row_blocks / (threads * 6) / 2 * 2;
  return even < 4 ? 4 : even > kMoePiece ? kMoePiece : even;
}

// Both products of all experts: first the inner activations, then what comes down.
static void moe_experts(const MoeArgs& a, const MoeChunk& c, const Team& team) {
  float* own = a.scratch.own + (int64_t)team.rank * OCT_MOE_ROWS * 2 * OCT_MOE_COLUMNS;
  for (int down = 0; down < 2; down++) {
    team.reset_counter();
    const int64_t blocks = (a.experts[2 * down].n + 15) / 16;
    const int64_t piece = moe_piece(blocks, *a.scratch.num_blocks, team.size), pieces = (blocks + piece - 1) / piece;
    while (true) {
      const int64_t unit = team.take();
      if (unit >= pieces * *a.scratch.num_blocks) break;
      const MoeBlock& b = a.scratch.blocks[unit / pieces];
      const int64_t begin = unit % pieces * piece, end = begin + piece < blocks ? begin + piece : blocks;
      if (down)
        moe_down(a, c, b, begin, end);
      else
        moe_inner(a, c, b, begin, end, own);
    }
  }
}

// residual + the sum over slots, one multiply-add chain from 0.
static void moe_combine(const MoeArgs& a, const MoeChunk& c, const Team& team) {
  const int kBlock = 256, hidden = a.router->k;
  const int64_t blocks = (hidden + kBlock - 1) / kBlock;
  int64_t begin, end;
  team.range(c.rows * blocks, &begin, &end);
  for (int64_t unit = begin; unit < end; unit++) {
    const int64_t r = unit / blocks, pair = r * a.top_k;
    const int first = (int)(unit % blocks) * kBlock, last = first + kBlock < hidden ? first + kBlock : hidden;
    float* y = a.dst + (c.row + r) * a.ld_dst;
    for (int i = first; i < last; i += 16) {
      const int n = last - i;
      F16 sum = f_zero();
      for (int s = 0; s < a.top_k; s++) {
        const float* x = a.scratch.out + (int64_t)a.scratch.place[pair + s] * hidden + i;
        sum = f_fma(f_set(a.scratch.weights[pair + s]), f_load_n(x, n, 0.0f), sum);
      }
      if (a.residual) sum = f_add(f_load_n(a.residual + (c.row + r) * a.ld_dst + i, n, 0.0f), sum);
      f_store_n(y + i, sum, n);
    }
  }
}

static void moe_chunk(const MoeArgs& a, const MoeChunk& c, const Team& team) {
  LinearArgs l = {};
  l.weight = a.router;
  l.src = c.src;
  l.dst = a.scratch.scores;
  l.rows = c.rows;
  l.ld_src = a.ld_src;
  l.ld_dst = (a.router->n + 15) / 16 * 16;
  l.src_f32 = a.f32;
  k_linear(l, team);
  team.barrier();
  int64_t begin, end;
  team.range(c.rows, &begin, &end);
  for (int64_t r = begin; r < end; r++) moe_choose(a, (int)r);
  team.barrier();
  if (team.rank == 0) moe_group(a, c.rows);
  if (c.rows > 1) {
    team.barrier();
    moe_gather(a, c, team);
  }
  moe_experts(a, c, team);
  team.barrier();
  moe_combine(a, c, team);
}

static void k_moe(const MoeArgs& a, const Team& team) {
  MoeChunk c = {};
  c.size = a.f32 ? 4 : 2;
  c.ld = round_up(a.router->k, 32);
  c.ld_inner = round_up(a.experts[0].n, 32);
  for (c.row = 0; c.row < a.rows; c.row += a.chunk) {
    // The next chunk's scores may be written while this one's are combined: nothing else is, before a barrier.
    c.rows = (int)(a.rows - c.row < a.chunk ? a.rows - c.row : a.chunk);
    c.src = (const uint8_t*)a.src + c.row * a.ld_src * c.size;
    moe_chunk(a, c, team);
  }
}

// dst + sigmoid(gate) * x: the shared expert.
static void k_gated_add(const GatedAddArgs& a, const Team& team) {
  int64_t begin, end;
  team.range(a.rows, &begin, &end);
  for (int64_t r = begin; r < end; r++) {
    const F16 g = f_set(a.gate[r * a.ld_gate]), one = f_set(1.0f);
    const F16 part = f_div(one, f_add(one, v_exp(f_sub(f_zero(), g))));
    const float* x = a.src + r * a.ld_src;
    float* y = a.dst + r * a.ld_dst;
    for (int c = 0; c < a.cols; c += 16) {
      const int n = a.cols - c;
      f_store_n(y + c, f_fma(part, f_load_n(x + c, n, 0.0f), f_load_n(y + c, n, 0.0f)), n);
    }
  }
}
