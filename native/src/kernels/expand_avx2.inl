// Expansion on AVX2, 8 columns at a time: scales and constants stay in 16 registers.

OCT_INLINE __m256 round_weight8(__m256 y) {
  const __m256 scale = _mm256_set1_ps(98304.0f);
  const __m256 units = _mm256_and_ps(y, _mm256_castsi256_ps(_mm256_set1_epi32(0x7f800000)));
  return _mm256_fnmadd_ps(units, scale, _mm256_fmadd_ps(units, scale, y));
}
OCT_INLINE __m256 q4_weight8(__m256i q, __m256 d, __m256 m) {
  return round_weight8(_mm256_fmadd_ps(d, _mm256_cvtepi32_ps(q), m));
}
OCT_INLINE __m256 half_load8(const uint8_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }

// One word of 8 columns: nibbles of 8 pairs, to rows w, w + 32, .. A nibble in the high half of a byte is 16 q: its
// scale is d / 16.
OCT_INLINE void expand_q4_word8(__m256i v, __m256 d, __m256 d16, __m256 m, float* w) {
  const __m256i low = _mm256_set1_epi32(0x0f), high = _mm256_set1_epi32(0xf0);
#pragma GCC unroll 4
  for (int b = 0; b < 4; b++) {
    _mm256_storeu_ps(w + 64 * b, q4_weight8(_mm256_and_si256(v, low), d, m));
    _mm256_storeu_ps(w + 64 * b + 32, q4_weight8(_mm256_and_si256(v, high), d16, m));
    v = _mm256_srli_epi32(v, 8);
  }
}

static void expand_q4_rounded(const uint8_t* tile, float* w) {
  for (int half = 0; half < 2; half++) {
    const __m256 d = half_load8(tile + 256 + 16 * half), m = half_load8(tile + 288 + 16 * half);
    const __m256 d16 = _mm256_mul_ps(d, _mm256_set1_ps(0.0625f));
    const __m256i* q = (const __m256i*)tile + half;
    for (int g = 0; g < 4; g++)
      expand_q4_word8(_mm256_loadu_si256(q + 2 * g), d, d16, m, w + g / 2 * 256 + g % 2 * 16 + 8 * half);
  }
}
