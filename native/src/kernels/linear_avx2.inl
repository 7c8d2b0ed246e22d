// linear on AVX2, bf16 path, from kOverlapRows rows on: while the first rows are multiplied with a tile, the next tile
// is expanded between their multiply-adds, one vector of weights a step, so that integer and conversion units work
// beside the multiply-add units. Tiles of a run of column blocks follow each other in memory and are one stream.

constexpr int kOverlapRows = 5;

// 8 columns of the next tile, from column 8 half on. Word g (0..3) and pair t (0..7) name a vector of weights: that of
// pair 8 (g % 2) + t, of its first input for g < 2, else of its second. Asked for in ascending order of t.
template <WeightKind kKind>
struct Ahead {
  static constexpr bool kHalves = format_of(kKind).scales >= Scales::kSub16;
  const uint8_t* codes;
  TileScale<Eight> s[2];
  I8 four;
  OCT_INLINE Ahead make(TileAt at, int half) {
    const int column = 8 * half;
    const GroupScale<Eight> group = group_scale<kKind, Eight>(at.head, column);
    Ahead a = {at.tile + (format_of(kKind).bits == 8 ? 1 : 4) * column, {}, {}};
    a.s[0] = tile_scale<kKind, Eight>(group, at.tile, column, 0);
    if constexpr (kHalves) a.s[1] = tile_scale<kKind, Eight>(group, at.tile, column, 1);
    return a;
  }
  template <int g, int t>
  inline __attribute__((always_inline)) __m256 weight() {
    constexpr int h = g % 2, odd = g / 2;
    if constexpr (format_of(kKind).bits == 8) {
      return byte_weight<kKind, true, Eight>(codes, 16 * h + 2 * t + odd, s[0]).v;
    } else {
      if constexpr (t % 4 == 0) four = four_codes<kKind, Eight, h, odd, t / 4>(codes);
      return code_weight<true, t % 4, Eight>(four, s[kHalves ? h : 0]).v;
    }
  }
};

template <>
struct Ahead<WeightKind::kQ4_1> {
  const uint8_t* q;
  __m256 d, d16, m;
  __m256i word;
  OCT_INLINE Ahead make(TileAt at, int half) {
    const uint8_t* tile = at.tile;
    const __m256 d = half_load8(tile + 256 + 16 * half), m = half_load8(tile + 288 + 16 * half);
    return {tile + 32 * half, d, _mm256_mul_ps(d, _mm256_set1_ps(0.0625f)), m, _mm256_setzero_si256()};
  }
  // A nibble in the high half of a byte is 16 q: its scale is d / 16.
  template <int g, int t>
  inline __attribute__((always_inline)) __m256 weight() {
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
  OCT_INLINE Ahead make(TileAt at, int half) { return {at.tile + 8 * half, half_load8(at.tile + 512 + 16 * half)}; }
  template <int g, int t>
  inline __attribute__((always_inline)) __m256 weight() {
    const __m128i bytes = _mm_loadl_epi64((const __m128i*)(q + 256 * (g % 2) + 32 * t + 16 * (g / 2)));
    return round_weight8(_mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), d));
  }
};

template <>
struct Ahead<WeightKind::kBf16> {
  const uint8_t* q;
  OCT_INLINE Ahead make(TileAt at, int half) { return {at.tile + 32 * half}; }
  template <int g, int t>
  inline __attribute__((always_inline)) __m256 weight() {
    const __m256i pairs = _mm256_loadu_si256((const __m256i*)(q + 512 * (g % 2) + 64 * t));
    if (g < 2) return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000)));
  }
};

// Eight steps of one chain for R rows, and word g of the next tile.
template <int R, WeightKind kKind, int g, int t>
OCT_INLINE void overlap_step(const float* x, const float* w, F16* s, Ahead<kKind>& ahead, float* next) {
  const F16 v = f_load(w + 32 * t);
#pragma GCC unroll 4
  for (int r = 0; r < R; r++) s[r] = f_fma(f_set(x[32 * r + 2 * t]), v, s[r]);
  _mm256_storeu_ps(next + 32 * t, ahead.template weight<g, t>());
  if constexpr (t < 7) overlap_step<R, kKind, g, t + 1>(x, w, s, ahead, next);
}

// micro_bf16 for R rows, with columns 8 half .. 8 half + 7 of `tile` expanded to `next`.
template <int R, WeightKind kKind>
static __attribute__((noinline)) void micro_overlap(const float* x, const float* w, float* c, TileAt tile, int half,
                                                    float* next) {
  Ahead<kKind> ahead = Ahead<kKind>::make(tile, half);
  next += 8 * half;
  F16 s[R], even[R];
#pragma GCC unroll 4
  for (int r = 0; r < R; r++) s[r] = f_zero();
  overlap_step<R, kKind, 0, 0>(x, w, s, ahead, next);
  overlap_step<R, kKind, 1, 0>(x + 16, w + 256, s, ahead, next + 256);
#pragma GCC unroll 4
  for (int r = 0; r < R; r++) {
    even[r] = s[r];
    s[r] = f_zero();
  }
  overlap_step<R, kKind, 2, 0>(x + 1, w + 16, s, ahead, next + 16);
  overlap_step<R, kKind, 3, 0>(x + 17, w + 272, s, ahead, next + 272);
#pragma GCC unroll 4
  for (int r = 0; r < R; r++) f_store(c + 16 * r, f_add(f_load(c + 16 * r), f_add(even[r], s[r])));
}

template <int R, WeightKind kKind>
OCT_INLINE void overlap_any(int rows, const float* x, const float* w, float* c, TileAt tile, int half, float* next) {
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
OCT_INLINE void overlap_tile(const RowSplit& split, const float* x, const float* w, float* c, float* even, TileAt tile,
                             float* next) {
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
  const uint8_t* data = block_data(*a.weight, begin);
  float *w = s.w, *next = s.w + kTileFloats;
  const RowSplit split = split_rows(rows);
  expand_tile<true>(*a.weight, data, 0, w);
  for (int64_t block = begin; block < end; block++) {
    const uint8_t* after = block + 1 < end ? data + block_bytes(kKind, a.weight->k) : data;
    for (int i = 0; i < 16 * rows; i += 16) f_store(s.c + i, f_zero());
    for (int t = 0; t < tiles; t++) {
      const TileAt at = t + 1 < tiles ? tile_at(kKind, data, t + 1) : tile_at(kKind, after, 0);
      overlap_tile<kKind>(split, s.x + (int64_t)t * rows * 32, w, s.c, s.even, at, next);
      float* swap = w;
      w = next;
      next = swap;
    }
    for (int r = 0; r < rows; r++) finish_row(a, row + r, block, f_load(s.c + r * 16));
    data = after;
  }
}

// Whether it served the call.
static bool linear_overlap(const LinearArgs& a, const LinearScratch& s, int64_t row, int rows, int64_t begin,
                           int64_t end) {
  if (a.src_f32 || rows < kOverlapRows) return false;
  switch (a.weight->kind) {
#define OCT_CASE(kind)                                             \
  case WeightKind::kind:                                           \
    overlap_blocks<WeightKind::kind>(a, s, row, rows, begin, end); \
    return true;
    OCT_COMMON_KIND(OCT_CASE)
    OCT_CASE(kBf16)
    OCT_CASE(kQ8_0) OCT_CASE(kQ4_1)
#undef OCT_CASE
        default : return false;
  }
}
