// 8 lanes on AVX2: half of the 16 virtual lanes in one register, for loops whose state would not fit twice into 16
// registers. Functions as in vec_avx2.h.
#pragma once

struct F8 {
  __m256 v;
};
struct I8 {
  __m256i v;
};

OCT_INLINE void f_store(float* p, F8 x) { _mm256_storeu_ps(p, x.v); }
OCT_INLINE F8 f_add(F8 x, F8 y) { return {_mm256_add_ps(x.v, y.v)}; }
OCT_INLINE F8 f_mul(F8 x, F8 y) { return {_mm256_mul_ps(x.v, y.v)}; }
OCT_INLINE F8 f_fma(F8 x, F8 y, F8 z) { return {_mm256_fmadd_ps(x.v, y.v, z.v)}; }
OCT_INLINE F8 f_fnma(F8 x, F8 y, F8 z) { return {_mm256_fnmadd_ps(x.v, y.v, z.v)}; }
OCT_INLINE I8 i_and(I8 x, I8 y) { return {_mm256_and_si256(x.v, y.v)}; }
OCT_INLINE I8 i_or(I8 x, I8 y) { return {_mm256_or_si256(x.v, y.v)}; }
template <int N>
OCT_INLINE I8 i_shl(I8 x) {
  return {_mm256_slli_epi32(x.v, N)};
}
template <int N>
OCT_INLINE I8 i_shr(I8 x) {
  return {_mm256_srli_epi32(x.v, N)};
}
OCT_INLINE F8 as_f(I8 x) { return {_mm256_castsi256_ps(x.v)}; }
OCT_INLINE I8 as_i(F8 x) { return {_mm256_castps_si256(x.v)}; }
OCT_INLINE F8 i_to_f(I8 x) { return {_mm256_cvtepi32_ps(x.v)}; }
OCT_INLINE I8 i_lookup(const uint8_t* table, I8 x) {
  return {_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table)), x.v)};
}

// What code written for either width names: its vectors, and how they are loaded.
struct Eight {
  using F = F8;
  using I = I8;
  static constexpr int kColumns = 8;
  OCT_INLINE F set(float x) { return {_mm256_set1_ps(x)}; }
  OCT_INLINE I set_i(int32_t x) { return {_mm256_set1_epi32(x)}; }
  OCT_INLINE F load(const uint8_t* p) { return {_mm256_loadu_ps((const float*)p)}; }
  OCT_INLINE I load_i(const uint8_t* p) { return {_mm256_loadu_si256((const __m256i*)p)}; }
  OCT_INLINE I load_u8(const uint8_t* p) { return {_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p))}; }
  OCT_INLINE I load_i8(const uint8_t* p) { return {_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p))}; }
  OCT_INLINE F load_half(const uint8_t* p) { return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p))}; }
};
