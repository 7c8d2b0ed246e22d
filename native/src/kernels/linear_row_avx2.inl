// linear for one to three rows of 4-bit weights on AVX2: 8 columns at a time, so that chains, scales and constants stay
// in 16 registers. A row's inputs of one tile are 32 floats; the rows of a tile lie side by side.

// even and odd: one word each of 8 columns, nibbles of 8 pairs.
template <int R>
OCT_INLINE void q4_step8(__m256i even, __m256i odd, const float* x, __m256 d, __m256 m, __m256* e, __m256* o) {
  const __m256 we = q4_weight8(even, d, m), wo = q4_weight8(odd, d, m);
#pragma GCC unroll 4
  for (int r = 0; r < R; r++) {
    e[r] = _mm256_fmadd_ps(_mm256_broadcast_ss(x + 32 * r), we, e[r]);
    o[r] = _mm256_fmadd_ps(_mm256_broadcast_ss(x + 32 * r + 1), wo, o[r]);
  }
}
template <int R>
OCT_INLINE void q4_word8(const __m256i* q, const float* x, __m256 d, __m256 m, __m256* e, __m256* o) {
  const __m256i low = _mm256_set1_epi32(0x0f), high = _mm256_set1_epi32(0xf0);
  const __m256 d16 = _mm256_mul_ps(d, _mm256_set1_ps(0.0625f));
  __m256i even = _mm256_loadu_si256(q), odd = _mm256_loadu_si256(q + 2);
#pragma GCC unroll 4
  for (int b = 0; b < 4; b++, x += 4) {
    q4_step8<R>(_mm256_and_si256(even, low), _mm256_and_si256(odd, low), x, d, m, e, o);
    q4_step8<R>(_mm256_and_si256(even, high), _mm256_and_si256(odd, high), x + 2, d16, m, e, o);
    even = _mm256_srli_epi32(even, 8);
    odd = _mm256_srli_epi32(odd, 8);
  }
}

// Columns 8 half .. 8 half + 7 of a column block, for R rows. The first half's pass fetches the next block ahead.
template <int R>
OCT_INLINE void q4_half_block(const uint8_t* data, int half, int tiles, const float* x, __m256* c) {
  const uint8_t* ahead = data + tiles * 320;
  for (int r = 0; r < R; r++) c[r] = _mm256_setzero_ps();
  for (int t = 0; t < tiles; t++, data += 320, ahead += 320, x += 32 * R) {
    if (half == 0)
      for (int line = 0; line < 320; line += 64) _mm_prefetch((const char*)ahead + line, _MM_HINT_T0);
    const __m256 d = half_load8(data + 256 + 16 * half), m = half_load8(data + 288 + 16 * half);
    const __m256i* q = (const __m256i*)data + half;
    __m256 e[R] = {}, o[R] = {};
    q4_word8<R>(q, x, d, m, e, o);
    q4_word8<R>(q + 4, x + 16, d, m, e, o);
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) c[r] = _mm256_add_ps(c[r], _mm256_add_ps(e[r], o[r]));
  }
}

template <int R>
static void q4_blocks(const LinearArgs& a, const float* x, int64_t begin, int64_t end) {
  const int tiles = (a.weight->k + 31) / 32;
  for (int64_t block = begin; block < end; block++) {
    __m256 c[2][R];
    for (int half = 0; half < 2; half++) q4_half_block<R>(block_data(*a.weight, block), half, tiles, x, c[half]);
    for (int r = 0; r < R; r++) finish_row(a, r, block, {c[0][r], c[1][r]});
  }
}
