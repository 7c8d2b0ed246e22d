// linear for one row on AVX2: 8 columns at a time, so that chains, scales and constants stay in 16 registers.

// even and odd: one word each of 8 columns, nibbles of 8 pairs.
OCT_INLINE void q4_word8(__m256i even, __m256i odd, const float* x, __m256 d, __m256 d16, __m256 m, __m256& e,
                         __m256& o) {
  const __m256i low = _mm256_set1_epi32(0x0f), high = _mm256_set1_epi32(0xf0);
#pragma GCC unroll 4
  for (int b = 0; b < 4; b++, x += 4) {
    e = _mm256_fmadd_ps(_mm256_broadcast_ss(x), q4_weight8(_mm256_and_si256(even, low), d, m), e);
    o = _mm256_fmadd_ps(_mm256_broadcast_ss(x + 1), q4_weight8(_mm256_and_si256(odd, low), d, m), o);
    e = _mm256_fmadd_ps(_mm256_broadcast_ss(x + 2), q4_weight8(_mm256_and_si256(even, high), d16, m), e);
    o = _mm256_fmadd_ps(_mm256_broadcast_ss(x + 3), q4_weight8(_mm256_and_si256(odd, high), d16, m), o);
    even = _mm256_srli_epi32(even, 8);
    odd = _mm256_srli_epi32(odd, 8);
  }
}

// Columns 8 half .. 8 half + 7 of a column block.
OCT_INLINE __m256 q4_half_block(const uint8_t* data, int half, int tiles, const float* x, const uint8_t* ahead) {
  __m256 c = _mm256_setzero_ps();
  for (int t = 0; t < tiles; t++, data += 320, ahead += 320, x += 32) {
    if (half == 0)
      for (int line = 0; line < 320; line += 64) _mm_prefetch((const char*)ahead + line, _MM_HINT_T0);
    const __m256 d = half_load8(data + 256 + 16 * half), m = half_load8(data + 288 + 16 * half);
    const __m256 d16 = _mm256_mul_ps(d, _mm256_set1_ps(0.0625f));
    __m256 e = _mm256_setzero_ps(), o = _mm256_setzero_ps();
    const __m256i* q = (const __m256i*)data + half;
    q4_word8(_mm256_loadu_si256(q), _mm256_loadu_si256(q + 2), x, d, d16, m, e, o);
    q4_word8(_mm256_loadu_si256(q + 4), _mm256_loadu_si256(q + 6), x + 16, d, d16, m, e, o);
    c = _mm256_add_ps(c, _mm256_add_ps(e, o));
  }
  return c;
}
