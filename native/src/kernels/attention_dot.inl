// The products of attention over one tile of 32 positions: scores q . k and values p . v, for R query rows at once.
// Rows share every load of the tile; what a row gets does not depend on R. On the bf16 path a row's inputs lie 32 side by
// side, the next 32 dims of all rows `q_block` floats on: addresses are then one register and a constant.
#pragma once

// R: rows at once; B: vectors of 16 columns at once.
#if defined(__AVX512F__)
#define OCT_ATTN_R 4
#define OCT_ATTN_B 2
#else
#define OCT_ATTN_R 3
#define OCT_ATTN_B 1
#endif

#define OCT_ATTN_KERNEL \
  template <int R>      \
  static __attribute__((noinline)) void

// One 32-deep block of B column vectors: their tiles, `step` apart, are [16 pairs][16 columns][2] bf16, row r's inputs
// are x[32 r + 0..31]. The loop stays a loop: unrolled wholly, GCC keeps its many addresses on the stack. What lies
// `ahead` bytes on is fetched meanwhile, a line at a time: fetched at once, a tile fills the core's miss buffers, and
// the sums wait.
template <int R, int B>
OCT_INLINE void at_block(const float* x, const uint16_t* tile, int64_t step, int64_t ahead, F16 (*e)[B], F16 (*o)[B]) {
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 2
    for (int b = 0; b < B; b++) e[r][b] = o[r][b] = f_zero();
#pragma GCC unroll 1
  for (int i = 0; i < 32; i += 8) {
#pragma GCC unroll 4
    for (int j = 0; j < 8; j += 2) {
      const uint16_t* pairs = tile + 16 * (i + j);
      F16 v[B];
#pragma GCC unroll 2
      for (int b = 0; b < B; b++) {
        __builtin_prefetch((const uint8_t*)(pairs + b * step) + ahead);
        v[b] = as_f(i_shl<16>(i_load((const int32_t*)(pairs + b * step))));
      }
#pragma GCC unroll 16
      for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int b = 0; b < B; b++) e[r][b] = f_fma(f_set(x[32 * r + i + j]), v[b], e[r][b]);
#if !defined(__AVX512F__)
      __asm__ volatile("" ::: "memory");  // loaded again: 12 sums leave AVX2 four registers
#endif
#pragma GCC unroll 2
      for (int b = 0; b < B; b++)
        v[b] = as_f(i_and(i_load((const int32_t*)(pairs + b * step)), i_set((int32_t)0xffff0000)));
#pragma GCC unroll 16
      for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int b = 0; b < B; b++) o[r][b] = f_fma(f_set(x[32 * r + i + j + 1]), v[b], o[r][b]);
    }
  }
}

// s[r * 32 + j] = scale * (q[r] . k[j]), bf16 pages.
OCT_ATTN_KERNEL at_scores_bf16(const float* q, int64_t q_block, int dk, const uint16_t* k, int64_t ahead, float scale,
                               float* s) {
  constexpr int B = OCT_ATTN_B;
  const int64_t step = dk / 32 * 512;
  for (int half = 0; half < 2; half += B, k += (B - 1) * step) {
    F16 c[R][B], e[R][B], o[R][B];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
      for (int b = 0; b < B; b++) c[r][b] = f_zero();
    const float* x = q;
    for (int d = 0; d < dk; d += 32, x += q_block, k += 512) {
      at_block<R, B>(x, k, step, ahead, e, o);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++)
#pragma GCC unroll 2
        for (int b = 0; b < B; b++) c[r][b] = f_add(c[r][b], f_add(e[r][b], o[r][b]));
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 2
      for (int b = 0; b < B; b++) f_store(s + r * 32 + (half + b) * 16, f_mul(c[r][b], f_set(scale)));
  }
}

// o[r] = o[r] * a[r] + p[r] . v, bf16 pages: B vectors of dims.
template <int R, int B>
OCT_INLINE void at_dims(const float* p, const float* a, const uint16_t* v, int64_t ahead, int dv, float* o) {
  F16 e[R][B], u[R][B];
  at_block<R, B>(p, v, 512, ahead, e, u);
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 2
    for (int b = 0; b < B; b++) {
      float* dst = o + r * dv + 16 * b;
      f_store(dst, f_add(f_mul(f_load(dst), f_set(a[r])), f_add(e[r][b], u[r][b])));
    }
}
OCT_ATTN_KERNEL at_values_bf16(const float* p, const float* a, const uint16_t* v, int64_t ahead, int dv, float* o) {
  int d = 0;
  for (; d + 16 * OCT_ATTN_B <= dv; d += 16 * OCT_ATTN_B) at_dims<R, OCT_ATTN_B>(p, a, v + d * 32, ahead, dv, o + d);
  for (; d < dv; d += 16) at_dims<R, 1>(p, a, v + d * 32, ahead, dv, o + d);
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

// n rows, in groups of at most R. dq and dv are the strides of q on the float32 path and of o.
template <int R>
static void at_scores_rows(bool f32, int n, const float* q, int64_t q_block, int dq, const uint8_t* k, int64_t ahead,
                           float scale, float* s) {
  for (; n >= R; n -= R, q += R * (f32 ? dq : 32), s += R * 32) {
    if (f32)
      at_scores_f32<R>(q, dq, (const float*)k, scale, s);
    else
      at_scores_bf16<R>(q, q_block, dq, (const uint16_t*)k, ahead, scale, s);
  }
  if constexpr (R > 1) at_scores_rows<R - 1>(f32, n, q, q_block, dq, k, ahead, scale, s);
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
  if constexpr (R > 1) at_values_rows<R - 1>(f32, n, p, a, v, ahead, dv, o);
}
