// linear: products of rows with a packed matrix (docs/numerics.md). A tile of weights is expanded once into L1 and
// used by every row of a row block; kMicroRows rows by kMicroBlocks column blocks are held in registers. Rows are
// converted to floats once a call, in tiles of 32 inputs, so that a tile's rows lie side by side.

constexpr int kRowBlock = 128;
#if defined(__AVX512F__)
constexpr int kMicroRows = 12, kMicroBlocks = 2, kChainUnroll = 4;
#else
constexpr int kMicroRows = 4, kMicroBlocks = 1, kChainUnroll = 4;
#endif

// c[row][16] of each column block += one tile's product: even chain, odd chain, then their sum.
// x is [R][32], w [B][32][16], `even` room for R * B vectors.
template <int R, int B>
static __attribute__((noinline)) void micro_bf16(const float* x, const float* w, float* c, int64_t c_block,
                                                 float* even) {
  F16 s[R][B];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 2
    for (int b = 0; b < B; b++) s[r][b] = f_zero();
#pragma GCC unroll kChainUnroll
  for (int i = 0; i < 16; i++) {
    F16 v[B];
#pragma GCC unroll 2
    for (int b = 0; b < B; b++) v[b] = f_load(w + b * kTileFloats + 32 * i);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const F16 xr = f_set(x[32 * r + 2 * i]);
#pragma GCC unroll 2
      for (int b = 0; b < B; b++) s[r][b] = f_fma(xr, v[b], s[r][b]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 2
    for (int b = 0; b < B; b++) {
      f_store(even + 16 * (r * B + b), s[r][b]);
      s[r][b] = f_zero();
    }
#pragma GCC unroll kChainUnroll
  for (int i = 0; i < 16; i++) {
    F16 v[B];
#pragma GCC unroll 2
    for (int b = 0; b < B; b++) v[b] = f_load(w + b * kTileFloats + 32 * i + 16);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const F16 xr = f_set(x[32 * r + 2 * i + 1]);
#pragma GCC unroll 2
      for (int b = 0; b < B; b++) s[r][b] = f_fma(xr, v[b], s[r][b]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 2
    for (int b = 0; b < B; b++) {
      float* p = c + b * c_block + 16 * r;
      f_store(p, f_add(f_load(p), f_add(f_load(even + 16 * (r * B + b)), s[r][b])));
    }
}

// The float32 path: one chain over the tile's `inputs` inputs.
template <int R, int B>
static __attribute__((noinline)) void micro_f32(const float* x, const float* w, float* c, int64_t c_block, int inputs) {
  F16 s[R][B];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 2
    for (int b = 0; b < B; b++) s[r][b] = f_load(c + b * c_block + 16 * r);
  for (int i = 0; i < inputs; i++) {
    F16 v[B];
#pragma GCC unroll 2
    for (int b = 0; b < B; b++) v[b] = f_load(w + b * kTileFloats + 16 * i);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const F16 xr = f_set(x[32 * r + i]);
#pragma GCC unroll 2
      for (int b = 0; b < B; b++) s[r][b] = f_fma(xr, v[b], s[r][b]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 2
    for (int b = 0; b < B; b++) f_store(c + b * c_block + 16 * r, s[r][b]);
}

// One tile for `rows` rows. Rows are split evenly over the fewest micro-kernels.
struct TileProduct {
  const float* x;
  const float* w;
  float* c;
  float* even;
  int rows, inputs;
  bool f32;
};

template <int R, int B>
OCT_INLINE void micro(const TileProduct& p, int row) {
  const float* x = p.x + 32 * row;
  float* c = p.c + 16 * row;
  if (p.f32)
    micro_f32<R, B>(x, p.w, c, 16 * kRowBlock, p.inputs);
  else
    micro_bf16<R, B>(x, p.w, c, 16 * kRowBlock, p.even);
}

template <int R, int B>
OCT_INLINE void micro_any(const TileProduct& p, int row, int count) {
  if constexpr (R > 0) {
    if (count == R) return micro<R, B>(p, row);
    micro_any<R - 1, B>(p, row, count);
  }
}

template <int B>
static void tile_product(const TileProduct& p) {
  const int groups = (p.rows + kMicroRows - 1) / kMicroRows;
  for (int g = 0; g < groups; g++) {
    const int row = p.rows * g / groups, end = p.rows * (g + 1) / groups;
    micro_any<kMicroRows, B>(p, row, end - row);
  }
}

// Rows [row, row + rows) as floats, [tile][rows][32]; columns beyond k are zero.
static void convert_rows(const LinearArgs& a, int64_t row, int rows, float* x) {
  const int k = a.weight->k, tiles = (k + 31) / 32;
  for (int r = 0; r < rows; r++)
    for (int t = 0; t < tiles; t++)
      for (int h = 0; h < 32; h += 16) {
        float* dst = x + (int64_t)(t * rows + r) * 32 + h;
        const int64_t at = (row + r) * a.ld_src + 32 * t + h;
        int count = k - 32 * t - h;
        count = count < 0 ? 0 : count > 16 ? 16 : count;
        if (count == 0)
          f_store(dst, f_zero());
        else if (a.src_f32)
          f_store(dst, f_load_n((const float*)a.src + at, count, 0.0f));
        else
          f_store(dst, bf16_load_n((const uint16_t*)a.src + at, count));
      }
}

// Writes one row of one column block: bias, scale, then residual.
OCT_INLINE void finish_row(const LinearArgs& a, int64_t row, int64_t block, F16 c) {
  const int left = a.weight->n - 16 * (int)block, count = left < 16 ? left : 16;
  if (a.bias) c = f_add(c, f_load_n(a.bias + 16 * block, count, 0.0f));
  if (a.scale != 1.0f) c = f_mul(c, f_set(a.scale));
  const int64_t at = row * a.ld_dst + 16 * block;
  if (a.residual) c = f_add(f_load_n(a.residual + at, count, 0.0f), c);
  f_store_n(a.dst + at, c, count);
}

#include "kernels/linear_row.inl"

struct LinearScratch {
  float* x;     // [tiles][rows][32]
  float* w;     // [2][32][16]
  float* c;     // [kMicroBlocks][kRowBlock][16]
  float* even;  // [kMicroRows][kMicroBlocks][16]
};

OCT_INLINE LinearScratch linear_scratch(int k, int rows) {
  const int64_t x = (int64_t)(k + 31) / 32 * 32 * rows, w = 2 * kTileFloats;
  const int64_t c = kMicroBlocks * kRowBlock * 16, even = kMicroRows * kMicroBlocks * 16;
  float* p = (float*)thread_scratch((size_t)(x + w + c + even) * 4);
  return {p + w + c + even, p, p + w, p + w + c};
}

template <int B>
static void linear_blocks(const LinearArgs& a, const LinearScratch& s, int64_t row, int rows, int64_t block) {
  const PackedWeight& weight = *a.weight;
  const uint8_t* data[B];
  for (int b = 0; b < B; b++) data[b] = block_data(weight, block + b);
  for (int b = 0; b < B; b++)
    for (int i = 0; i < 16 * rows; i += 16) f_store(s.c + b * 16 * kRowBlock + i, f_zero());
  for (int t = 0; 32 * t < weight.k; t++) {
    for (int b = 0; b < B; b++) {
      if (a.src_f32)
        expand_tile<false>(weight, data[b], t, s.w + b * kTileFloats);
      else
        expand_tile<true>(weight, data[b], t, s.w + b * kTileFloats);
    }
    const int left = weight.k - 32 * t;
    tile_product<B>({s.x + (int64_t)t * rows * 32, s.w, s.c, s.even, rows, left < 32 ? left : 32, a.src_f32});
  }
  for (int b = 0; b < B; b++)
    for (int r = 0; r < rows; r++) finish_row(a, row + r, block + b, f_load(s.c + (b * kRowBlock + r) * 16));
}

#if defined(__AVX2__) && !defined(__AVX512F__) && !OCTAVO_AMX
#include "kernels/linear_avx2.inl"
#else
static bool linear_overlap(const LinearArgs&, const LinearScratch&, int64_t, int, int64_t, int64_t) { return false; }
#endif

// Column blocks handed out at a time: enough pieces that a thread that was disturbed does not hold up the others.
OCT_INLINE int64_t piece_blocks(int64_t blocks, int threads) {
  constexpr int64_t kLeast = kMicroBlocks == 2 ? 2 : 4, kPiecesAThread = 6;
  if (threads == 1) return blocks;
  const int64_t even = blocks / (threads * kPiecesAThread) / kLeast * kLeast;
  return even < kLeast ? kLeast : even;
}

#include "kernels/linear_integer.inl"

// Work is (row block, piece of column blocks), in this order, so that each thread converts a row block once.
static void linear_lanes(const LinearArgs& a, const Team& team) {
  const bool few = is_few_rows(a);
  const int64_t blocks = (a.weight->n + 15) / 16, piece = piece_blocks(blocks, team.size);
  const int64_t pieces = (blocks + piece - 1) / piece, row_blocks = few ? 1 : (a.rows + kRowBlock - 1) / kRowBlock;
  if (team.size > 1) team.reset_counter();
  int64_t held = -1, alone = 0;
  int rows = 0;
  LinearScratch s = {};
  while (true) {
    const int64_t unit = team.size > 1 ? team.take() : alone++;
    if (unit >= pieces * row_blocks) return;
    const int64_t row_block = unit / pieces, row = row_block * kRowBlock, begin = unit % pieces * piece;
    const int64_t end = begin + piece < blocks ? begin + piece : blocks;
    if (row_block != held) {
      rows = few || a.rows - row < kRowBlock ? (int)(a.rows - row) : kRowBlock;
      s = linear_scratch(a.weight->k, rows);
      convert_rows(a, row, rows, s.x);
      held = row_block;
    }
    if (few) {
      linear_few(a, s.x, begin, end);
      continue;
    }
    if (linear_overlap(a, s, row, rows, begin, end)) continue;
    int64_t block = begin;
    if constexpr (kMicroBlocks == 2)
      for (; block + 2 <= end; block += 2) linear_blocks<2>(a, s, row, rows, block);
    for (; block < end; block++) linear_blocks<1>(a, s, row, rows, block);
  }
}

#if !OCTAVO_AMX
static void k_linear(const LinearArgs& a, const Team& team) {
  if (!linear_integer(a, team)) linear_lanes(a, team);
}
#endif
