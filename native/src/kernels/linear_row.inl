// linear for one row (up to kFewRows of most formats): weights are expanded in registers and used at once.

// Even and odd chain of one tile; x points at the tile's 32 inputs.
struct Chains {
  F16 even, odd;
};

OCT_INLINE Chains row_tile_bf16(const uint8_t* tile, const float* x) {
  Chains s = {f_zero(), f_zero()};
#pragma GCC unroll 4
  for (int i = 0; i < 16; i++) {
    F16 even, odd;
    pair_load((const uint16_t*)tile + 32 * i, even, odd);
    s.even = f_fma(f_set(x[2 * i]), even, s.even);
    s.odd = f_fma(f_set(x[2 * i + 1]), odd, s.odd);
  }
  return s;
}

OCT_INLINE Chains row_tile_q8(const uint8_t* tile, const float* x) {
  const F16 d = half_load((const uint16_t*)(tile + 512));
  Chains s = {f_zero(), f_zero()};
#pragma GCC unroll 4
  for (int i = 0; i < 16; i++) {
    const int8_t* q = (const int8_t*)tile + 32 * i;
    s.even = f_fma(f_set(x[2 * i]), round_weight(f_mul(i_to_f(i8_load(q)), d)), s.even);
    s.odd = f_fma(f_set(x[2 * i + 1]), round_weight(f_mul(i_to_f(i8_load(q + 16)), d)), s.odd);
  }
  return s;
}

OCT_INLINE Chains row_tile_q4(const uint8_t* tile, const float* x) {
  const F16 d = half_load((const uint16_t*)(tile + 256)), m = half_load((const uint16_t*)(tile + 288));
  const I16 low = i_set(15);
  Chains s = {f_zero(), f_zero()};
  for (int h = 0; h < 2; h++) {
    I16 even = i_load((const int32_t*)(tile + 128 * h)), odd = i_load((const int32_t*)(tile + 128 * h + 64));
#pragma GCC unroll 8
    for (int t = 0; t < 8; t++) {
      const float* p = x + 16 * h + 2 * t;
      s.even = f_fma(f_set(p[0]), round_weight(f_fma(d, i_to_f(i_and(even, low)), m)), s.even);
      s.odd = f_fma(f_set(p[1]), round_weight(f_fma(d, i_to_f(i_and(odd, low)), m)), s.odd);
      even = i_shr<4>(even);
      odd = i_shr<4>(odd);
    }
  }
  return s;
}

// Rows of an activation's tile lie side by side, 32 floats each.
template <class V, int R>
struct RowSink {
  const float* x;
  typename V::F even[R], odd[R];
  inline __attribute__((always_inline)) void put(int pair, typename V::F e, typename V::F o) {
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
      even[r] = f_fma(V::set(x[32 * r + 2 * pair]), e, even[r]);
      odd[r] = f_fma(V::set(x[32 * r + 2 * pair + 1]), o, odd[r]);
    }
  }
};

// Columns [column, column + V::kColumns) of a column block, for R rows. The first columns' pass fetches the next block.
template <WeightKind kKind, class V, int R>
static __attribute__((noinline)) void format_columns(const uint8_t* block, int column, int k, const float* x,
                                                     float* out) {
  const int tiles = k / 32;
  const int64_t ahead = block_bytes(kKind, k);
  typename V::F c[R];
  for (int r = 0; r < R; r++) c[r] = V::set(0.0f);
  for (int t = 0; t < tiles; t += grouped(kKind) ? kGroupTiles : 1) {
    const TileAt at = tile_at(kKind, block, t);
    const GroupScale<V> group = group_scale<kKind, V>(at.head, column);
    for (int i = 0; i < (grouped(kKind) ? kGroupTiles : 1); i++, x += 32 * R) {
      const uint8_t* tile = at.tile + i * tile_bytes(kKind);
      if (column == 0)
        for (int line = 0; line < tile_bytes(kKind); line += 64) __builtin_prefetch(tile + ahead + line);
      RowSink<V, R> sink = {x, {}, {}};
      each_pair<kKind, true, V>(group, tile, column, sink);
#pragma GCC unroll 4
      for (int r = 0; r < R; r++) c[r] = f_add(c[r], f_add(sink.even[r], sink.odd[r]));
    }
  }
  for (int r = 0; r < R; r++) f_store(out + 16 * r + column, c[r]);
}

template <WeightKind kKind, int R>
static void format_blocks(const LinearArgs& a, const float* x, int64_t begin, int64_t end) {
  for (int64_t block = begin; block < end; block++) {
    float c[16 * R];
    for (int column = 0; column < 16; column += Columns::kColumns)
      format_columns<kKind, Columns, R>(block_data(*a.weight, block), column, a.weight->k, x, c);
    for (int r = 0; r < R; r++) finish_row(a, r, block, f_load(c + 16 * r));
  }
}

#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr int kFewRows = 3;
#include "kernels/linear_row_avx2.inl"
#else
constexpr int kFewRows = 1;
#endif
// Elsewhere speed is no concern: one row goes the way of many, which spares half of the compilation.
#if defined(__AVX512F__) || (defined(__AVX2__) && !OCTAVO_AMX)
constexpr bool kFormatRows = true;
#else
constexpr bool kFormatRows = false;
#endif

template <WeightKind kKind>
static void format_rows(const LinearArgs& a, const float* x, int64_t begin, int64_t end) {
  if constexpr (kFormatRows && kFewRows == 3 && is_common(kKind)) {
    if (a.rows == 3) return format_blocks<kKind, 3>(a, x, begin, end);
    if (a.rows == 2) return format_blocks<kKind, 2>(a, x, begin, end);
  }
  if constexpr (kFormatRows) format_blocks<kKind, 1>(a, x, begin, end);
}

template <WeightKind kKind>
static F16 row_block(const uint8_t* data, int tiles, const float* x) {
  constexpr int64_t kAhead = 4096;  // bytes: the hardware alone leaves memory idle in between
  F16 c = f_zero();
  for (int t = 0; t < tiles; t++, data += tile_bytes(kKind), x += 32) {
    for (int line = 0; line < tile_bytes(kKind); line += 64) __builtin_prefetch(data + kAhead + line);
    const Chains s = kKind == WeightKind::kBf16   ? row_tile_bf16(data, x)
                     : kKind == WeightKind::kQ8_0 ? row_tile_q8(data, x)
                                                  : row_tile_q4(data, x);
    c = f_add(c, f_add(s.even, s.odd));
  }
  return c;
}

template <WeightKind kKind>
static void row_blocks(const LinearArgs& a, const float* x, int64_t begin, int64_t end) {
  const int tiles = (a.weight->k + 31) / 32;
  for (int64_t block = begin; block < end; block++)
    finish_row(a, 0, block, row_block<kKind>(block_data(*a.weight, block), tiles, x));
}

static void q4_rows(const LinearArgs& a, const float* x, int64_t begin, int64_t end) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  if (a.rows == 3) return q4_blocks<3>(a, x, begin, end);
  if (a.rows == 2) return q4_blocks<2>(a, x, begin, end);
  q4_blocks<1>(a, x, begin, end);
#else
  row_blocks<WeightKind::kQ4_1>(a, x, begin, end);
#endif
}

// Whether these kernels serve the call.
OCT_INLINE bool is_few_rows(const LinearArgs& a) {
  if (a.src_f32) return false;
  switch (a.weight->kind) {
    case WeightKind::kF32:
      return false;
    case WeightKind::kBf16:
    case WeightKind::kQ8_0:
      return a.rows == 1;
    case WeightKind::kQ4_1:
      return a.rows <= kFewRows;
    default:
      return kFormatRows && a.rows <= (is_common(a.weight->kind) ? kFewRows : 1);
  }
}
static void linear_few(const LinearArgs& a, const float* x, int64_t begin, int64_t end) {
  switch (a.weight->kind) {
    case WeightKind::kF32:  // is_few_rows refuses it
      return;
    case WeightKind::kBf16:
      return row_blocks<WeightKind::kBf16>(a, x, begin, end);
    case WeightKind::kQ8_0:
      return row_blocks<WeightKind::kQ8_0>(a, x, begin, end);
    case WeightKind::kQ4_1:
      return q4_rows(a, x, begin, end);
#define OCT_CASE(kind)   \
  case WeightKind::kind: \
    return format_rows<WeightKind::kind>(a, x, begin, end);
      OCT_EACH_KIND(OCT_CASE)
#undef OCT_CASE
  }
}
