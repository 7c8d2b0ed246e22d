// The products of attention for many query rows on AVX-512: a tile's keys or values become floats in L1 once, and all rows
// use them. Elsewhere registers are too few for it to pay.
#pragma once

#if defined(__AVX512F__)
constexpr int kAttnMany = 8, kAttnRows = 12;

// A tile of `blocks` 32-deep blocks of 16 columns, to floats [block][32 inputs][16 columns].
static void at_expand(const uint16_t* tile, int blocks, int64_t ahead, float* w) {
  for (int i = 0; i < 16 * blocks; i++) {
    F16 even, odd;
    __builtin_prefetch((const uint8_t*)(tile + 32 * i) + ahead);
    pair_load(tile + 32 * i, even, odd);
    f_store(w + 32 * i, even);
    f_store(w + 32 * i + 16, odd);
  }
}

// c[r][0..31] += one 32-deep block of two column vectors, whose floats lie `step` apart: R rows, even chains, then odd.
template <int R>
static __attribute__((noinline)) void at_micro(const float* x, const float* w, int64_t step, float* c, int64_t c_row,
                                               bool first) {
  alignas(64) float even[R * 32];
  F16 s[R][2];
#pragma GCC unroll 2
  for (int odd = 0; odd < 2; odd++) {
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) s[r][0] = s[r][1] = f_zero();
#pragma GCC unroll 4
    for (int i = odd; i < 32; i += 2) {
      const F16 v0 = f_load(w + 16 * i), v1 = f_load(w + step + 16 * i);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {
        const F16 xr = f_set(x[32 * r + i]);
        s[r][0] = f_fma(xr, v0, s[r][0]);
        s[r][1] = f_fma(xr, v1, s[r][1]);
      }
    }
    if (odd) break;
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      f_store(even + 32 * r, s[r][0]);
      f_store(even + 32 * r + 16, s[r][1]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++, c += c_row)
#pragma GCC unroll 2
    for (int b = 0; b < 2; b++) {
      const F16 old = first ? f_zero() : f_load(c + 16 * b);
      f_store(c + 16 * b, f_add(old, f_add(f_load(even + 32 * r + 16 * b), s[r][b])));
    }
}

template <int R>
OCT_INLINE void at_micro_any(int rows, const float* x, const float* w, int64_t step, float* c, int64_t c_row,
                             bool first) {
  if (rows == R) return at_micro<R>(x, w, step, c, c_row, first);
  if constexpr (R > 1) at_micro_any<R - 1>(rows, x, w, step, c, c_row, first);
}

static void at_scores_many(int n, const float* q, int64_t q_block, int dk, const uint8_t* k, int64_t ahead, float scale,
                           float* w, float* s) {
  const int blocks = dk / 32, groups = (n + kAttnRows - 1) / kAttnRows;
  at_expand((const uint16_t*)k, 2 * blocks, ahead, w);
  for (int g = 0; g < groups; g++) {
    const int row = n * g / groups, rows = n * (g + 1) / groups - row;
    for (int b = 0; b < blocks; b++)
      at_micro_any<kAttnRows>(rows, q + b * q_block + 32 * row, w + 512 * b, 512 * blocks, s + 32 * row, 32, b == 0);
  }
  for (int i = 0; i < n * 32; i += 16) f_store(s + i, f_mul(f_load(s + i), f_set(scale)));
}

static void at_values_many(int n, const float* p, const float* a, const uint8_t* v, int64_t ahead, int dv, float* w,
                           float* o) {
  const int groups = (n + kAttnRows - 1) / kAttnRows;
  at_expand((const uint16_t*)v, dv / 16, ahead, w);
  for (int r = 0; r < n; r++) {
    if (a[r] == 1.0f) continue;  // as it mostly is: a maximum seldom changes
    for (int d = 0; d < dv; d += 16) f_store(o + r * dv + d, f_mul(f_load(o + r * dv + d), f_set(a[r])));
  }
  for (int g = 0; g < groups; g++) {
    const int row = n * g / groups, rows = n * (g + 1) / groups - row;
    for (int d = 0; d < dv; d += 32)
      at_micro_any<kAttnRows>(rows, p + 32 * row, w + 32 * d, 512, o + row * dv + d, dv, false);
  }
}

OCT_INLINE bool at_many(const AttentionArgs& p, const AtShape& sh, int n) {
  return !p.kv.f32 && n >= kAttnMany && sh.dv % 32 == 0;
}
#else
static void at_scores_many(int, const float*, int64_t, int, const uint8_t*, int64_t, float, float*, float*) {}
static void at_values_many(int, const float*, const float*, const uint8_t*, int64_t, int, float*, float*) {}
OCT_INLINE bool at_many(const AttentionArgs&, const AtShape&, int) { return false; }
#endif
