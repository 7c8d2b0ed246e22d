// Expansion of one packed tile (pack.h) to floats, [32 inputs][16 columns]. kRound gives the bfloat16 values that a
// bf16 product reads; without it the values are those of the float32 path.

constexpr int kTileDepth = 32, kTileFloats = 512;

// Nearest bfloat16, ties to even, of values far from overflow and never denormal: adding 1.5 * 2^16 units of the
// value's own binade leaves 8 significant bits. Zero becomes +0.
OCT_INLINE F16 round_weight(F16 y) {
  const F16 units = as_f(i_and(as_i(y), i_set(0x7f800000)));
  return f_fnma(units, f_set(98304.0f), f_fma(units, f_set(98304.0f), y));
}

template <bool kRound>
OCT_INLINE F16 finish_weight(F16 y) {
  return kRound ? round_weight(y) : f_add(y, f_zero());
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

OCT_INLINE int64_t tile_bytes(WeightKind kind) {
  return kind == WeightKind::kBf16 ? 1024 : kind == WeightKind::kQ8_0 ? 544 : kind == WeightKind::kQ4_1 ? 320 : 2048;
}
// The first byte of column block `block`.
OCT_INLINE const uint8_t* block_data(const PackedWeight& weight, int64_t block) {
  if (weight.kind == WeightKind::kF32) return weight.data + block * weight.k * 64;
  return weight.data + block * ((weight.k + 31) / 32) * tile_bytes(weight.kind);
}
// Tile t of a column block that starts at `block`.
template <bool kRound>
static void expand_tile(const PackedWeight& weight, const uint8_t* block, int t, float* w) {
  const uint8_t* tile = block + t * tile_bytes(weight.kind);
  switch (weight.kind) {
    case WeightKind::kBf16:
      return expand_bf16(tile, w);
    case WeightKind::kQ8_0:
      return expand_q8<kRound>(tile, w);
    case WeightKind::kQ4_1:
      return kRound ? expand_q4_rounded(tile, w) : expand_q4<false>(tile, w);
    case WeightKind::kF32:
      return expand_f32<kRound>(tile, w, weight.k - 32 * t);
  }
}
