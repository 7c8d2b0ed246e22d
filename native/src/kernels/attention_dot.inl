// The products of attention over one tile of 32 positions: scores q . k and values p . v, for R query rows at once.
// Rows share every load of the tile; what a row gets does not depend on R.
#if defined(__AVX512F__)
#define OCT_ATTN_R 8
#else
#define OCT_ATTN_R 3
#endif

#define OCT_ATTN_KERNEL \
  template <int R>      \
  static __attribute__((noinline)) void

// One 32-deep block: `tile` is [16 pairs][16 columns][2] bf16, row r's inputs are a[r * lda + 0..31]. The loop stays a
// loop: unrolled wholly, GCC keeps its many addresses on the stack. What lies `ahead` bytes on is fetched meanwhile, a
// line at a time: fetched at once, a tile fills the core's miss buffers, and the sums wait.
template <int R>
OCT_INLINE void at_block(const float* a, int lda, const uint16_t* tile, int64_t ahead, F16* e, F16* o) {
  const float* row[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) {
    row[r] = a + r * (int64_t)lda;
    e[r] = o[r] = f_zero();
  }
#pragma GCC unroll 1
  for (int i = 0; i < 32; i += 8) {
#pragma GCC unroll 4
    for (int j = 0; j < 8; j += 2) {
      const int32_t* pairs = (const int32_t*)(tile + 16 * (i + j));
      __builtin_prefetch((const uint8_t*)pairs + ahead);
      const F16 even = as_f(i_shl<16>(i_load(pairs)));
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) e[r] = f_fma(f_set(row[r][i + j]), even, e[r]);
      __asm__ volatile("" ::: "memory");  // loaded again: 12 sums leave AVX2 four registers
      const F16 odd = as_f(i_and(i_load(pairs), i_set((int32_t)0xffff0000)));
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) o[r] = f_fma(f_set(row[r][i + j + 1]), odd, o[r]);
    }
  }
}

// s[r * 32 + j] = scale * (q[r] . k[j]), bf16 pages.
OCT_ATTN_KERNEL at_scores_bf16(const float* q, int dk, const uint16_t* k, int64_t ahead, float scale, float* s) {
  for (int half = 0; half < 2; half++) {
    F16 c[R], e[R], o[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) c[r] = f_zero();
    for (int b = 0; b < dk; b += 32) {
      at_block<R>(q + b, dk, k, ahead, e, o);
      k += 512;
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) c[r] = f_add(c[r], f_add(e[r], o[r]));
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) f_store(s + r * 32 + half * 16, f_mul(c[r], f_set(scale)));
  }
}

// o[r] = o[r] * a[r] + p[r] . v, bf16 pages.
OCT_ATTN_KERNEL at_values_bf16(const float* p, const float* a, const uint16_t* v, int64_t ahead, int dv, float* o) {
  for (int d = 0; d < dv; d += 16) {
    F16 e[R], u[R];
    at_block<R>(p, 32, v + d * 32, ahead, e, u);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      float* dst = o + r * dv + d;
      f_store(dst, f_add(f_mul(f_load(dst), f_set(a[r])), f_add(e[r], u[r])));
    }
  }
}

// The same on float32 pages: K is [2 halves][dims][16], V is [32][dims].
OCT_ATTN_KERNEL at_scores_f32(const float* q, int dims, const float* k, float scale, float* s) {
  for (int half = 0; half < 2; half++) {
    F16 c[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) c[r] = f_zero();
    for (int d = 0; d < dims; d++) {
      const F16 x = f_load(k + (half * dims + d) * 16);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) c[r] = f_fma(f_set(q[r * dims + d]), x, c[r]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) f_store(s + r * 32 + half * 16, f_mul(c[r], f_set(scale)));
  }
}

OCT_ATTN_KERNEL at_values_f32(const float* p, const float* a, const float* v, int dims, float* o) {
  for (int d = 0; d < dims; d += 16) {
    const int n = dims - d;
    F16 c[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) c[r] = f_mul(f_load_n(o + r * dims + d, n, 0.0f), f_set(a[r]));
    for (int j = 0; j < 32; j++) {
      const F16 x = f_load_n(v + j * dims + d, n, 0.0f);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) c[r] = f_fma(f_set(p[r * 32 + j]), x, c[r]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) f_store_n(o + r * dims + d, c[r], n);
  }
}

// n rows, in groups of at most R. dq and dv are the strides of q and of o.
template <int R>
static void at_scores_rows(bool f32, int n, const float* q, int dq, const uint8_t* k, int64_t ahead, float scale,
                           float* s) {
  for (; n >= R; n -= R, q += R * dq, s += R * 32) {
    if (f32)
      at_scores_f32<R>(q, dq, (const float*)k, scale, s);
    else
      at_scores_bf16<R>(q, dq, (const uint16_t*)k, ahead, scale, s);
  }
  if constexpr (R > 1) at_scores_rows<(R > 4 ? R / 2 : R - 1)>(f32, n, q, dq, k, ahead, scale, s);
}

template <int R>
static void at_values_rows(bool f32, int n, const float* p, const float* a, const uint8_t* v, int64_t ahead, int dv,
                           float* o) {
  for (; n >= R; n -= R, p += R * 32, a += R, o += R * dv) {
    if (f32)
      at_values_f32<R>(p, a, (const float*)v, dv, o);
    else
      at_values_bf16<R>(p, a, (const uint16_t*)v, ahead, dv, o);
  }
  if constexpr (R > 1) at_values_rows<(R > 4 ? R / 2 : R - 1)>(f32, n, p, a, v, ahead, dv, o);
}
