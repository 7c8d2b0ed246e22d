// 16 virtual lanes on AVX-512 F/BW/VL/DQ. See vec_avx2.h for the meaning of each function.
#pragma once

#define OCT_INLINE static inline __attribute__((always_inline))

struct F16 {
  __m512 v;
};
struct I16 {
  __m512i v;
};
struct M16 {
  __mmask16 v;
};

OCT_INLINE F16 f_load(const float* p) { return {_mm512_loadu_ps(p)}; }
OCT_INLINE F16 f_set(float x) { return {_mm512_set1_ps(x)}; }
OCT_INLINE F16 f_zero() { return {_mm512_setzero_ps()}; }
OCT_INLINE void f_store(float* p, F16 x) { _mm512_storeu_ps(p, x.v); }
OCT_INLINE F16 f_add(F16 x, F16 y) { return {_mm512_add_ps(x.v, y.v)}; }
OCT_INLINE F16 f_sub(F16 x, F16 y) { return {_mm512_sub_ps(x.v, y.v)}; }
OCT_INLINE F16 f_mul(F16 x, F16 y) { return {_mm512_mul_ps(x.v, y.v)}; }
OCT_INLINE F16 f_div(F16 x, F16 y) { return {_mm512_div_ps(x.v, y.v)}; }
OCT_INLINE F16 f_fma(F16 x, F16 y, F16 z) { return {_mm512_fmadd_ps(x.v, y.v, z.v)}; }
OCT_INLINE F16 f_fnma(F16 x, F16 y, F16 z) { return {_mm512_fnmadd_ps(x.v, y.v, z.v)}; }
OCT_INLINE F16 f_max(F16 x, F16 y) { return {_mm512_max_ps(x.v, y.v)}; }
OCT_INLINE F16 f_min(F16 x, F16 y) { return {_mm512_min_ps(x.v, y.v)}; }
OCT_INLINE M16 f_lt(F16 x, F16 y) { return {_mm512_cmp_ps_mask(x.v, y.v, _CMP_LT_OQ)}; }
OCT_INLINE M16 f_le(F16 x, F16 y) { return {_mm512_cmp_ps_mask(x.v, y.v, _CMP_LE_OQ)}; }
OCT_INLINE M16 f_eq(F16 x, F16 y) { return {_mm512_cmp_ps_mask(x.v, y.v, _CMP_EQ_OQ)}; }
OCT_INLINE M16 f_isnan(F16 x) { return {_mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q)}; }
OCT_INLINE F16 f_select(M16 m, F16 yes, F16 no) { return {_mm512_mask_blend_ps(m.v, no.v, yes.v)}; }
OCT_INLINE unsigned m_bits(M16 m) { return (unsigned)m.v; }

OCT_INLINE I16 i_load(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
OCT_INLINE I16 i_set(int32_t x) { return {_mm512_set1_epi32(x)}; }
OCT_INLINE void i_store(int32_t* p, I16 x) { _mm512_storeu_si512(p, x.v); }
OCT_INLINE I16 i_lanes() { return {_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)}; }
OCT_INLINE I16 i_add(I16 x, I16 y) { return {_mm512_add_epi32(x.v, y.v)}; }
OCT_INLINE I16 i_sub(I16 x, I16 y) { return {_mm512_sub_epi32(x.v, y.v)}; }
OCT_INLINE I16 i_and(I16 x, I16 y) { return {_mm512_and_si512(x.v, y.v)}; }
OCT_INLINE I16 i_or(I16 x, I16 y) { return {_mm512_or_si512(x.v, y.v)}; }
OCT_INLINE I16 i_xor(I16 x, I16 y) { return {_mm512_xor_si512(x.v, y.v)}; }
template <int N>
OCT_INLINE I16 i_shl(I16 x) {
  return {_mm512_slli_epi32(x.v, N)};
}
template <int N>
OCT_INLINE I16 i_shr(I16 x) {
  return {_mm512_srli_epi32(x.v, N)};
}
OCT_INLINE M16 i_eq(I16 x, I16 y) { return {_mm512_cmpeq_epi32_mask(x.v, y.v)}; }
OCT_INLINE M16 i_gt(I16 x, I16 y) { return {_mm512_cmpgt_epi32_mask(x.v, y.v)}; }
OCT_INLINE F16 as_f(I16 x) { return {_mm512_castsi512_ps(x.v)}; }
OCT_INLINE I16 as_i(F16 x) { return {_mm512_castps_si512(x.v)}; }
OCT_INLINE F16 i_to_f(I16 x) { return {_mm512_cvtepi32_ps(x.v)}; }
OCT_INLINE I16 f_to_i(F16 x) { return {_mm512_cvtps_epi32(x.v)}; }
OCT_INLINE void u_mul_wide(I16 x, uint32_t y, I16& hi, I16& lo) {
  const __m512i m = _mm512_set1_epi32((int32_t)y);
  const __m512i even = _mm512_mul_epu32(x.v, m), odd = _mm512_mul_epu32(_mm512_srli_epi64(x.v, 32), m);
  lo = {_mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32))};
  hi = {_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd)};
}
OCT_INLINE F16 f_sqrt(F16 x) { return {_mm512_sqrt_ps(x.v)}; }

OCT_INLINE float f_sum(F16 x) {
  __m256 s = _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  q = _mm_add_ss(q, _mm_shuffle_ps(q, q, 1));
  return _mm_cvtss_f32(q);
}
OCT_INLINE float f_hmax(F16 x) {
  __m256 s = _mm256_max_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  q = _mm_max_ss(q, _mm_shuffle_ps(q, q, 1));
  return _mm_cvtss_f32(q);
}

OCT_INLINE I16 u16_load(const uint16_t* p) { return {_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p))}; }
OCT_INLINE I16 u8_load(const uint8_t* p) { return {_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p))}; }
OCT_INLINE I16 i8_load(const int8_t* p) { return {_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p))}; }
OCT_INLINE I16 i_lookup(const uint8_t* table, I16 x) {
  return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)table)), x.v)};
}
OCT_INLINE void u16_store(uint16_t* p, I16 x) { _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(x.v)); }
OCT_INLINE F16 half_load(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }

// Of all lanes.
OCT_INLINE int32_t i_sum(I16 x) { return _mm512_reduce_add_epi32(x.v); }
// Lanes in [-128, 127] as 16 bytes, `order` naming the lane of each.
OCT_INLINE void i8_store(void* p, I16 x, const uint8_t* order) {
  const __m128i order16 = _mm_loadu_si128((const __m128i*)order);
  _mm_storeu_si128((__m128i*)p, _mm_shuffle_epi8(_mm512_cvtepi32_epi8(x.v), order16));
}
// Bytes [4][16] as 16 columns of 4.
OCT_INLINE I16 i_columns(const uint8_t* p) {
  const __m512i words = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i bytes = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  return {_mm512_shuffle_epi8(_mm512_permutexvar_epi32(words, _mm512_loadu_si512(p)), bytes)};
}

// Sums of products of 4 bytes a lane: codes (signed, or 0 to 63), and signed bytes x, none of which is -128.
// kOffset: what `signed_codes` adds to signed codes.
struct DotPairs {
  static constexpr int kOffset = 0;
  OCT_INLINE I16 signed_codes(I16 x) { return x; }
  template <bool kSigned>
  static inline __attribute__((always_inline)) I16 add(I16 sum, I16 codes, I16 x) {
    __m512i u = codes.v, w = x.v;
    if (kSigned) {
      u = _mm512_abs_epi8(codes.v);
      w = _mm512_mask_sub_epi8(x.v, _mm512_movepi8_mask(codes.v), _mm512_setzero_si512(), x.v);
    }
    const __m512i pairs = _mm512_maddubs_epi16(u, w);
    return {_mm512_add_epi32(sum.v, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))};
  }
};
// The same by one instruction of AVX512-VNNI, written out: the file is compiled for machines without it too.
struct DotInstruction {
  static constexpr int kOffset = 128;
  OCT_INLINE I16 signed_codes(I16 x) { return {_mm512_xor_si512(x.v, _mm512_set1_epi8((char)0x80))}; }
  template <bool kSigned>
  static inline __attribute__((always_inline)) I16 add(I16 sum, I16 codes, I16 x) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum.v) : "v"(codes.v), "v"(x.v));
    return sum;
  }
};

#include "vec_common.h"
