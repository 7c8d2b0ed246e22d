// Expansion of one packed tile (pack.h) to floats, [32 inputs][16 columns]. kRound gives the bfloat16 values that a
// bf16 product reads; without it the values are those of the float32 path.

template <bool kRound>
OCT_INLINE F16 finish_weight(F16 y) {
  return finish<kRound, Sixteen>(y);
}

static void expand_bf16(const uint8_t* tile, float* w) {
  for (int i = 0; i < 16; i++) {
    F16 even, odd;
    pair_load((const uint16_t*)tile + 32 * i, even, odd);
    f_store(w + 32 * i, even);
    f_store(w + 32 * i + 16, odd);
  }
}

template <bool kRound>
static void expand_q8(const uint8_t* tile, float* w) {
  const F16 d = half_load((const uint16_t*)(tile + 512));
  for (int i = 0; i < kTileDepth; i++)
    f_store(w + 16 * i, finish_weight<kRound>(f_mul(i_to_f(i8_load((const int8_t*)tile + 16 * i)), d)));
}

// Eight pairs' values of one side: nibbles 0..7 of a word.
template <bool kRound>
OCT_INLINE void expand_q4_word(const uint8_t* word, F16 d, F16 m, float* w) {
  const I16 low = i_set(15);
  I16 v = i_load((const int32_t*)word);
  for (int t = 0; t < 8; t++) {
    f_store(w + 32 * t, finish_weight<kRound>(f_fma(d, i_to_f(i_and(v, low)), m)));
    v = i_shr<4>(v);
  }
}

template <bool kRound>
static void expand_q4(const uint8_t* tile, float* w) {
  const F16 d = half_load((const uint16_t*)(tile + 256)), m = half_load((const uint16_t*)(tile + 288));
  for (int g = 0; g < 4; g++) expand_q4_word<kRound>(tile + 64 * g, d, m, w + g / 2 * 256 + g % 2 * 16);
}

#if defined(__AVX2__) && !defined(__AVX512F__)
#include "kernels/expand_avx2.inl"
#else
static void expand_q4_rounded(const uint8_t* tile, float* w) { expand_q4<true>(tile, w); }
#endif

// `inputs` of the tile are present (its last tile may be short); the others become zero.
template <bool kRound>
static void expand_f32(const uint8_t* tile, float* w, int inputs) {
  for (int i = 0; i < kTileDepth; i++) {
    F16 v = i < inputs ? f_load((const float*)tile + 16 * i) : f_zero();
    f_store(w + 16 * i, kRound ? bf16_round(v) : v);
  }
}

// Writes pairs to a tile of floats, from column `w` on.
struct FloatSink {
  float* w;
  template <class F>
  inline __attribute__((always_inline)) void put(int pair, F even, F odd) {
    f_store(w + 32 * pair, even);
    f_store(w + 32 * pair + 16, odd);
  }
};
template <WeightKind kKind, bool kRound>
static void expand_format(TileAt at, float* w) {
  for (int column = 0; column < 16; column += Columns::kColumns) {
    FloatSink sink = {w + column};
    each_pair<kKind, kRound, Columns>(group_scale<kKind, Columns>(at.head, column), at.tile, column, sink);
  }
}

// Tile t of a column block that starts at `block`.
template <bool kRound>
static void expand_tile(const PackedWeight& weight, const uint8_t* block, int t, float* w) {
  const TileAt at = tile_at(weight.kind, block, t);
  switch (weight.kind) {
    case WeightKind::kBf16:
      return expand_bf16(at.tile, w);
    case WeightKind::kQ8_0:
      return expand_q8<kRound>(at.tile, w);
    case WeightKind::kQ4_1:
      return kRound ? expand_q4_rounded(at.tile, w) : expand_q4<false>(at.tile, w);
    case WeightKind::kF32:
      return expand_f32<kRound>(at.tile, w, weight.k - 32 * t);
#define OCT_CASE(kind)   \
  case WeightKind::kind: \
    return expand_format<WeightKind::kind, kRound>(at, w);
      OCT_EACH_KIND(OCT_CASE)
#undef OCT_CASE
  }
}
