// 16 virtual lanes on AVX2 + FMA + F16C. Included once by a per-ISA translation unit, inside its own
// anonymous namespace: nothing here may be emitted as a shared inline symbol.
#pragma once

#define OCT_INLINE static inline __attribute__((always_inline))

struct F16 {
  __m256 a, b;
};
struct I16 {
  __m256i a, b;
};
// A lane mask: all ones or all zeros in each 32-bit lane.
struct M16 {
  __m256 a, b;
};

OCT_INLINE F16 f_load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
OCT_INLINE F16 f_set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
OCT_INLINE F16 f_zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
OCT_INLINE void f_store(float* p, F16 x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
OCT_INLINE F16 f_add(F16 x, F16 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
OCT_INLINE F16 f_sub(F16 x, F16 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
OCT_INLINE F16 f_mul(F16 x, F16 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
OCT_INLINE F16 f_div(F16 x, F16 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
// x * y + z, rounded once.
OCT_INLINE F16 f_fma(F16 x, F16 y, F16 z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
// z - x * y, rounded once.
OCT_INLINE F16 f_fnma(F16 x, F16 y, F16 z) {
  return {_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)};
}
// x > y ? x : y (y where either is NaN), on every instruction set.
OCT_INLINE F16 f_max(F16 x, F16 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
// x < y ? x : y (y where either is NaN).
OCT_INLINE F16 f_min(F16 x, F16 y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
OCT_INLINE M16 f_lt(F16 x, F16 y) { return {_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)}; }
OCT_INLINE M16 f_le(F16 x, F16 y) { return {_mm256_cmp_ps(x.a, y.a, _CMP_LE_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LE_OQ)}; }
OCT_INLINE M16 f_eq(F16 x, F16 y) { return {_mm256_cmp_ps(x.a, y.a, _CMP_EQ_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_EQ_OQ)}; }
OCT_INLINE M16 f_isnan(F16 x) { return {_mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q), _mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q)}; }
OCT_INLINE F16 f_select(M16 m, F16 yes, F16 no) {
  return {_mm256_blendv_ps(no.a, yes.a, m.a), _mm256_blendv_ps(no.b, yes.b, m.b)};
}
// Bit j is set where lane j of the mask is.
OCT_INLINE unsigned m_bits(M16 m) { return (unsigned)_mm256_movemask_ps(m.a) | ((unsigned)_mm256_movemask_ps(m.b) << 8); }

OCT_INLINE I16 i_load(const int32_t* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 8))};
}
OCT_INLINE I16 i_set(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
OCT_INLINE void i_store(int32_t* p, I16 x) {
  _mm256_storeu_si256((__m256i*)p, x.a);
  _mm256_storeu_si256((__m256i*)(p + 8), x.b);
}
OCT_INLINE I16 i_lanes() { return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)}; }
OCT_INLINE I16 i_add(I16 x, I16 y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
OCT_INLINE I16 i_sub(I16 x, I16 y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
OCT_INLINE I16 i_and(I16 x, I16 y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
OCT_INLINE I16 i_or(I16 x, I16 y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
OCT_INLINE I16 i_xor(I16 x, I16 y) { return {_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)}; }
template <int N>
OCT_INLINE I16 i_shl(I16 x) {
  return {_mm256_slli_epi32(x.a, N), _mm256_slli_epi32(x.b, N)};
}
// Logical shift right.
template <int N>
OCT_INLINE I16 i_shr(I16 x) {
  return {_mm256_srli_epi32(x.a, N), _mm256_srli_epi32(x.b, N)};
}
OCT_INLINE M16 i_eq(I16 x, I16 y) {
  return {_mm256_castsi256_ps(_mm256_cmpeq_epi32(x.a, y.a)), _mm256_castsi256_ps(_mm256_cmpeq_epi32(x.b, y.b))};
}
// Signed x > y.
OCT_INLINE M16 i_gt(I16 x, I16 y) {
  return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(x.a, y.a)), _mm256_castsi256_ps(_mm256_cmpgt_epi32(x.b, y.b))};
}
OCT_INLINE F16 as_f(I16 x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
OCT_INLINE I16 as_i(F16 x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
// Signed 32-bit integers to float, nearest even.
OCT_INLINE F16 i_to_f(I16 x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
// Float to signed 32-bit integers, nearest even.
OCT_INLINE I16 f_to_i(F16 x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
// Unsigned 32 x 32 -> 64 bits: the high and the low half of each lane's product.
OCT_INLINE __m256i oct_mul_hi_lo(__m256i x, __m256i y, __m256i* lo) {
  const __m256i even = _mm256_mul_epu32(x, y), odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), y);
  *lo = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
  return _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}
OCT_INLINE void u_mul_wide(I16 x, uint32_t y, I16& hi, I16& lo) {
  const __m256i m = _mm256_set1_epi32((int32_t)y);
  I16 l;
  hi = {oct_mul_hi_lo(x.a, m, &l.a), oct_mul_hi_lo(x.b, m, &l.b)};
  lo = l;
}
OCT_INLINE F16 f_sqrt(F16 x) { return {_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)}; }

// The fixed tree of the contract: lane i + lane i+8, then +4, +2, +1.
OCT_INLINE float f_sum(F16 x) {
  __m256 s = _mm256_add_ps(x.a, x.b);
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  q = _mm_add_ss(q, _mm_shuffle_ps(q, q, 1));
  return _mm_cvtss_f32(q);
}
OCT_INLINE float f_hmax(F16 x) {
  __m256 s = _mm256_max_ps(x.a, x.b);
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  q = _mm_max_ss(q, _mm_shuffle_ps(q, q, 1));
  return _mm_cvtss_f32(q);
}

OCT_INLINE I16 u16_load(const uint16_t* p) {
  return {_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)),
          _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
OCT_INLINE I16 u8_load(const uint8_t* p) {
  return {_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)),
          _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8)))};
}
OCT_INLINE I16 i8_load(const int8_t* p) {
  return {_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)),
          _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8)))};
}
// The entry of a table of 16 bytes that each byte (0..15) names.
OCT_INLINE I16 i_lookup(const uint8_t* table, I16 x) {
  const __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table));
  return {_mm256_shuffle_epi8(t, x.a), _mm256_shuffle_epi8(t, x.b)};
}
// Low 16 bits of each lane, stored as 16 uint16.
OCT_INLINE void u16_store(uint16_t* p, I16 x) {
  const __m256i m = _mm256_set1_epi32(0xffff);
  __m256i r = _mm256_packus_epi32(_mm256_and_si256(x.a, m), _mm256_and_si256(x.b, m));
  _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(r, 0xd8));
}
// IEEE half to float, denormals included whatever DAZ says.
OCT_INLINE F16 half_load(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}

// Of all lanes.
OCT_INLINE int32_t i_sum(I16 x) {
  const __m256i s = _mm256_add_epi32(x.a, x.b);
  __m128i q = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
  q = _mm_add_epi32(q, _mm_shuffle_epi32(q, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(q, _mm_shuffle_epi32(q, 0xb1)));
}
// Lanes in [-128, 127] as 16 bytes, `order` naming the lane of each.
OCT_INLINE void i8_store(void* p, I16 x, const uint8_t* order) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
  const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128((__m128i*)p, _mm_shuffle_epi8(bytes, _mm_loadu_si128((const __m128i*)order)));
}
// Bytes [4][16] as 16 columns of 4.
OCT_INLINE I16 i_columns(const uint8_t* p) {
  const __m128i a = _mm_loadu_si128((const __m128i*)p), b = _mm_loadu_si128((const __m128i*)(p + 16));
  const __m128i c = _mm_loadu_si128((const __m128i*)(p + 32)), d = _mm_loadu_si128((const __m128i*)(p + 48));
  const __m128i ab = _mm_unpacklo_epi8(a, b), cd = _mm_unpacklo_epi8(c, d);
  const __m128i ab2 = _mm_unpackhi_epi8(a, b), cd2 = _mm_unpackhi_epi8(c, d);
  return {_mm256_set_m128i(_mm_unpackhi_epi16(ab, cd), _mm_unpacklo_epi16(ab, cd)),
          _mm256_set_m128i(_mm_unpackhi_epi16(ab2, cd2), _mm_unpacklo_epi16(ab2, cd2))};
}

// Sums of products of 4 bytes a lane: codes (signed, or 0 to 63), and signed bytes x, none of which is -128.
// kOffset: what `signed_codes` adds to signed codes.
struct DotPairs {
  static constexpr int kOffset = 0;
  OCT_INLINE I16 signed_codes(I16 x) { return x; }
  OCT_INLINE __m256i half(__m256i sum, __m256i u, __m256i v) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(u, v), _mm256_set1_epi16(1)));
  }
  template <bool kSigned>
  static inline __attribute__((always_inline)) I16 add(I16 sum, I16 codes, I16 x) {  // x is the same everywhere
    if (!kSigned) return {half(sum.a, codes.a, x.a), half(sum.b, codes.b, x.a)};
    return {half(sum.a, _mm256_abs_epi8(codes.a), _mm256_sign_epi8(x.a, codes.a)),
            half(sum.b, _mm256_abs_epi8(codes.b), _mm256_sign_epi8(x.a, codes.b))};
  }
};

#include "vec_common.h"
