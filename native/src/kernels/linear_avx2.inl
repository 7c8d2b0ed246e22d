// linear on AVX2, bf16 path, from kOverlapRows rows on: while the first rows are multiplied with a tile, the next tile
// is expanded between their multiply-adds, one vector of weights a step, so that integer and conversion units work
// beside the multiply-add units. Tiles of a run of column blocks follow each other in memory and are one stream.

constexpr int kOverlapRows = 5;

// 8 columns of the next tile, from column 8 half on. Word g (0..3) and pair t (0..7) name a vector of weights: that of
// pair 8 (g % 2) + t, of its first input for g < 2, else of its second. Asked for in ascending order of t.
template <WeightKind kKind>
struct Ahead;

template <>
struct Ahead<WeightKind::kQ4_1> {
  const uint8_t* q;
  __m256 d, d16, m;
  __m256i word;
  OCT_INLINE Ahead make(const uint8_t* tile, int half) {
    const __m256 d = half_load8(tile + 256 + 16 * half), m = half_load8(tile + 288 + 16 * half);
    return {tile + 32 * half, d, _mm256_mul_ps(d, _mm256_set1_ps(0.0625f)), m, _mm256_setzero_si256()};
  }
  // A nibble in the high half of a byte is 16 q: its scale is d / 16.
  inline __attribute__((always_inline)) __m256 weight(int g, int t) {
    if (t == 0)
      word = _mm256_loadu_si256((const __m256i*)(q + 64 * (g % 2 * 2 + g / 2)));
    else if (t % 2 == 0)
      word = _mm256_srli_epi32(word, 8);
    return q4_weight8(_mm256_and_si256(word, _mm256_set1_epi32(t % 2 ? 0xf0 : 0x0f)), t % 2 ? d16 : d, m);
  }
};

template <>
struct Ahead<WeightKind::kQ8_0> {
  const uint8_t* q;
  __m256 d;
  OCT_INLINE Ahead make(const uint8_t* tile, int half) { return {tile + 8 * half, half_load8(tile + 512 + 16 * half)}; }
  inline __attribute__((always_inline)) __m256 weight(int g, int t) {
    const __m128i bytes = _mm_loadl_epi64((const __m128i*)(q + 256 * (g % 2) + 32 * t + 16 * (g / 2)));
    return round_weight8(_mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), d));
  }
};

template <>
struct Ahead<WeightKind::kBf16> {
  const uint8_t* q;
  OCT_INLINE Ahead make(const uint8_t* tile, int half) { return {tile + 32 * half}; }
  inline __attribute__((always_inline)) __m256 weight(int g, int t) {
    const __m256i pairs = _mm256_loadu_si256((const __m256i*)(q + 512 * (g % 2) + 64 * t));
    if (g < 2) return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000)));
  }
};

// Eight steps of one chain for R rows, and word g of the next tile.
template <int R, WeightKind kKind>
OCT_INLINE void overlap_word(const float* x, const float* w, F16* s, Ahead<kKind>& ahead, int g, float* next) {
#pragma GCC unroll 8
  for (int t = 0; t < 8; t++) {
    const F16 v = f_load(w + 32 * t);
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) s[r] = f_fma(f_set(x[32 * r + 2 * t]), v, s[r]);
    _mm256_storeu_ps(next + 32 * t, ahead.weight(g, t));
  }
}

// micro_bf16 for R rows, with columns 8 half .. 8 half + 7 of `tile` expanded to `next`.
template <int R, WeightKind kKind>
static __attribute__((noinline)) void micro_overlap(const float* x, const float* w, float* c, const uint8_t* tile,
                                                    int half, float* next) {
  Ahead<kKind> ahead = Ahead<kKind>::make(tile, half);
  next += 8 * half;
  F16 s[R], even[R];
#pragma GCC unroll 4
  for (int r = 0; r < R; r++) s[r] = f_zero();
  overlap_word<R, kKind>(x, w, s, ahead, 0, next);
  overlap_word<R, kKind>(x + 16, w + 256, s, ahead, 1, next + 256);
#pragma GCC unroll 4
  for (int r = 0; r < R; r++) {
    even[r] = s[r];
    s[r] = f_zero();
  }
  overlap_word<R, kKind>(x + 1, w + 16, s, ahead, 2, next + 16);
  overlap_word<R, kKind>(x + 17, w + 272, s, ahead, 3, next + 272);
#pragma GCC unroll 4
  for (int r = 0; r < R; r++) f_store(c + 16 * r, f_add(f_load(c + 16 * r), f_add(even[r], s[r])));
}

template <int R, WeightKind kKind>
OCT_INLINE void overlap_any(int rows, const float* x, const float* w, float* c, const uint8_t* tile, int half,
                            float* next) {
  if (rows == R) return micro_overlap<R, kKind>(x, w, c, tile, half, next);
  if constexpr (R > 2) overlap_any<R - 1, kKind>(rows, x, w, c, tile, half, next);
}
template <int R>
OCT_INLINE void rest_any(int rows, const float* x, const float* w, float* c, float* even) {
  if (rows == R) return micro_bf16<R, 1>(x, w, c, 0, even);
  if constexpr (R > 1) rest_any<R - 1>(rows, x, w, c, even);
}

// How rows are split over micro-kernels: two that overlap, then whole ones of 4, then one of what is left.
struct RowSplit {
  int first, second, fours, rest;
};
OCT_INLINE RowSplit split_rows(int rows) {
  const int first = rows < 8 ? (rows + 1) / 2 : 4, second = rows < 8 ? rows / 2 : 4;
  return {first, second, (rows - first - second) / 4, (rows - first - second) % 4};
}

// One tile, the next tile expanded beside the first two groups of rows. Arguments stay in registers: a structure would
// be written by vector stores, which wait for the multiply-adds before them.
template <WeightKind kKind>
OCT_INLINE void overlap_tile(const RowSplit& split, const float* x, const float* w, float* c, float* even,
                             const uint8_t* tile, float* next) {
  overlap_any<4, kKind>(split.first, x, w, c, tile, 0, next);
  x += 32 * split.first;
  c += 16 * split.first;
  overlap_any<4, kKind>(split.second, x, w, c, tile, 1, next);
  x += 32 * split.second;
  c += 16 * split.second;
  for (int g = 0; g < split.fours; g++, x += 128, c += 64) micro_bf16<4, 1>(x, w, c, 0, even);
  rest_any<3>(split.rest, x, w, c, even);
}

// Column blocks [begin, end). The last tile's next is itself again.
template <WeightKind kKind>
static void overlap_blocks(const LinearArgs& a, const LinearScratch& s, int64_t row, int rows, int64_t begin,
                           int64_t end) {
  const int tiles = (a.weight->k + 31) / 32;
  const uint8_t *tile = block_data(*a.weight, begin), *last = block_data(*a.weight, end) - tile_bytes(kKind);
  float *w = s.w, *next = s.w + kTileFloats;
  const RowSplit split = split_rows(rows);
  expand_tile<true>(*a.weight, tile, 0, w);
  for (int64_t block = begin; block < end; block++) {
    for (int i = 0; i < 16 * rows; i += 16) f_store(s.c + i, f_zero());
    for (int t = 0; t < tiles; t++) {
      if (tile != last) tile += tile_bytes(kKind);
      overlap_tile<kKind>(split, s.x + (int64_t)t * rows * 32, w, s.c, s.even, tile, next);
      float* swap = w;
      w = next;
      next = swap;
    }
    for (int r = 0; r < rows; r++) finish_row(a, row + r, block, f_load(s.c + r * 16));
  }
}

// Whether it served the call.
static bool linear_overlap(const LinearArgs& a, const LinearScratch& s, int64_t row, int rows, int64_t begin,
                           int64_t end) {
  if (a.src_f32 || rows < kOverlapRows) return false;
  switch (a.weight->kind) {
    case WeightKind::kBf16:
      overlap_blocks<WeightKind::kBf16>(a, s, row, rows, begin, end);
      return true;
    case WeightKind::kQ8_0:
      overlap_blocks<WeightKind::kQ8_0>(a, s, row, rows, begin, end);
      return true;
    case WeightKind::kQ4_1:
      overlap_blocks<WeightKind::kQ4_1>(a, s, row, rows, begin, end);
      return true;
    default:
      return false;  // the other formats' expansion gains nothing from it
  }
}
