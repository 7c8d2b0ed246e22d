// 16 virtual lanes in portable C++ (GCC/Clang vector extensions). See vec_avx2.h for the meaning of each function.
#pragma once

#define OCT_INLINE static inline __attribute__((always_inline))

typedef float oct_f16v __attribute__((vector_size(64)));
typedef int32_t oct_i16v __attribute__((vector_size(64)));
typedef uint32_t oct_u16v __attribute__((vector_size(64)));

struct F16 {
  oct_f16v v;
};
struct I16 {
  oct_i16v v;
};
struct M16 {
  oct_i16v v;
};

OCT_INLINE F16 f_load(const float* p) {
  F16 r;
  __builtin_memcpy(&r.v, p, 64);
  return r;
}
OCT_INLINE F16 f_set(float x) { return {x - (oct_f16v){}}; }
OCT_INLINE F16 f_zero() { return {(oct_f16v){}}; }
OCT_INLINE void f_store(float* p, F16 x) { __builtin_memcpy(p, &x.v, 64); }
OCT_INLINE F16 f_add(F16 x, F16 y) { return {x.v + y.v}; }
OCT_INLINE F16 f_sub(F16 x, F16 y) { return {x.v - y.v}; }
OCT_INLINE F16 f_mul(F16 x, F16 y) { return {x.v * y.v}; }
OCT_INLINE F16 f_div(F16 x, F16 y) { return {x.v / y.v}; }
OCT_INLINE F16 f_fma(F16 x, F16 y, F16 z) {
  F16 r;
  for (int i = 0; i < 16; i++) r.v[i] = __builtin_fmaf(x.v[i], y.v[i], z.v[i]);
  return r;
}
OCT_INLINE F16 f_fnma(F16 x, F16 y, F16 z) {
  F16 r;
  for (int i = 0; i < 16; i++) r.v[i] = __builtin_fmaf(-x.v[i], y.v[i], z.v[i]);
  return r;
}
OCT_INLINE F16 f_max(F16 x, F16 y) { return {x.v > y.v ? x.v : y.v}; }
OCT_INLINE F16 f_min(F16 x, F16 y) { return {x.v < y.v ? x.v : y.v}; }
OCT_INLINE M16 f_lt(F16 x, F16 y) { return {x.v < y.v}; }
OCT_INLINE M16 f_le(F16 x, F16 y) { return {x.v <= y.v}; }
OCT_INLINE M16 f_eq(F16 x, F16 y) { return {x.v == y.v}; }
OCT_INLINE M16 f_isnan(F16 x) { return {x.v != x.v}; }
OCT_INLINE F16 f_select(M16 m, F16 yes, F16 no) { return {m.v ? yes.v : no.v}; }
OCT_INLINE unsigned m_bits(M16 m) {
  unsigned r = 0;
  for (int i = 0; i < 16; i++) r |= (m.v[i] ? 1u : 0u) << i;
  return r;
}

OCT_INLINE I16 i_load(const int32_t* p) {
  I16 r;
  __builtin_memcpy(&r.v, p, 64);
  return r;
}
OCT_INLINE I16 i_set(int32_t x) { return {x + (oct_i16v){}}; }
OCT_INLINE void i_store(int32_t* p, I16 x) { __builtin_memcpy(p, &x.v, 64); }
OCT_INLINE I16 i_lanes() { return {(oct_i16v){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}}; }
OCT_INLINE I16 i_add(I16 x, I16 y) { return {(oct_i16v)((oct_u16v)x.v + (oct_u16v)y.v)}; }
OCT_INLINE I16 i_sub(I16 x, I16 y) { return {(oct_i16v)((oct_u16v)x.v - (oct_u16v)y.v)}; }
OCT_INLINE I16 i_and(I16 x, I16 y) { return {x.v & y.v}; }
OCT_INLINE I16 i_or(I16 x, I16 y) { return {x.v | y.v}; }
OCT_INLINE I16 i_xor(I16 x, I16 y) { return {x.v ^ y.v}; }
template <int N>
OCT_INLINE I16 i_shl(I16 x) {
  return {(oct_i16v)((oct_u16v)x.v << N)};
}
template <int N>
OCT_INLINE I16 i_shr(I16 x) {
  return {(oct_i16v)((oct_u16v)x.v >> N)};
}
OCT_INLINE M16 i_eq(I16 x, I16 y) { return {x.v == y.v}; }
OCT_INLINE M16 i_gt(I16 x, I16 y) { return {x.v > y.v}; }
OCT_INLINE F16 as_f(I16 x) { return {(oct_f16v)x.v}; }
OCT_INLINE I16 as_i(F16 x) { return {(oct_i16v)x.v}; }
OCT_INLINE F16 i_to_f(I16 x) { return {__builtin_convertvector(x.v, oct_f16v)}; }
OCT_INLINE I16 f_to_i(F16 x) {
  I16 r;
  for (int i = 0; i < 16; i++) r.v[i] = (int32_t)__builtin_lrintf(x.v[i]);
  return r;
}
OCT_INLINE void u_mul_wide(I16 x, uint32_t y, I16& hi, I16& lo) {
  I16 h, l;
  for (int i = 0; i < 16; i++) {
    const uint64_t p = (uint64_t)(uint32_t)x.v[i] * y;
    h.v[i] = (int32_t)(p >> 32);
    l.v[i] = (int32_t)p;
  }
  hi = h;
  lo = l;
}
OCT_INLINE F16 f_sqrt(F16 x) {
  F16 r;
  for (int i = 0; i < 16; i++) r.v[i] = __builtin_sqrtf(x.v[i]);
  return r;
}

OCT_INLINE float f_sum(F16 x) {
  float s[8];
  for (int i = 0; i < 8; i++) s[i] = x.v[i] + x.v[i + 8];
  for (int i = 0; i < 4; i++) s[i] = s[i] + s[i + 4];
  for (int i = 0; i < 2; i++) s[i] = s[i] + s[i + 2];
  return s[0] + s[1];
}
OCT_INLINE float f_hmax(F16 x) {
  float s[8];
  for (int i = 0; i < 8; i++) s[i] = x.v[i] > x.v[i + 8] ? x.v[i] : x.v[i + 8];
  for (int n = 4; n > 0; n /= 2)
    for (int i = 0; i < n; i++) s[i] = s[i] > s[i + n] ? s[i] : s[i + n];
  return s[0];
}

OCT_INLINE I16 u16_load(const uint16_t* p) {
  I16 r;
  for (int i = 0; i < 16; i++) r.v[i] = p[i];
  return r;
}
OCT_INLINE I16 u8_load(const uint8_t* p) {
  I16 r;
  for (int i = 0; i < 16; i++) r.v[i] = p[i];
  return r;
}
OCT_INLINE I16 i8_load(const int8_t* p) {
  I16 r;
  for (int i = 0; i < 16; i++) r.v[i] = p[i];
  return r;
}
OCT_INLINE I16 i_lookup(const uint8_t* table, I16 x) {
  uint8_t bytes[64];
  __builtin_memcpy(bytes, &x.v, 64);
  for (int i = 0; i < 64; i++) bytes[i] = table[bytes[i] & 15];
  return i_load((const int32_t*)bytes);
}
OCT_INLINE void u16_store(uint16_t* p, I16 x) {
  for (int i = 0; i < 16; i++) p[i] = (uint16_t)x.v[i];
}
OCT_INLINE F16 half_load(const uint16_t* p) {
  const oct_i16v h = u16_load(p).v;
  const oct_i16v sign = (oct_i16v)((oct_u16v)(h & 0x8000) << 16);
  const oct_i16v mag = h & 0x7fff;
  // Halves below 2^-14 are an integer times 2^-24: exact, and a normal float whatever DAZ says.
  const oct_i16v small = (oct_i16v)(__builtin_convertvector(mag, oct_f16v) * 0x1p-24f);
  const oct_i16v normal = (mag << 13) + (112 << 23);
  const oct_i16v infnan = (mag << 13) | 0x7f800000;
  const oct_i16v bits = mag < 0x400 ? small : (mag >= 0x7c00 ? infnan : normal);
  return {(oct_f16v)(bits | sign)};
}

// Of all lanes.
OCT_INLINE int32_t i_sum(I16 x) {
  int32_t s = 0;
  for (int i = 0; i < 16; i++) s += x.v[i];
  return s;
}
// Lanes in [-128, 127] as 16 bytes, `order` naming the lane of each.
OCT_INLINE void i8_store(void* p, I16 x, const uint8_t* order) {
  for (int i = 0; i < 16; i++) ((int8_t*)p)[i] = (int8_t)x.v[order[i]];
}
// Bytes [4][16] as 16 columns of 4.
OCT_INLINE I16 i_columns(const uint8_t* p) {
  uint8_t bytes[64];
  for (int i = 0; i < 64; i++) bytes[i] = p[i % 4 * 16 + i / 4];
  return i_load((const int32_t*)bytes);
}

// Sums of products of 4 bytes a lane: codes (signed, or 0 to 63), and signed bytes x, none of which is -128.
// kOffset: what `signed_codes` adds to signed codes.
struct DotPairs {
  static constexpr int kOffset = 0;
  OCT_INLINE I16 signed_codes(I16 x) { return x; }
  template <bool kSigned>
  static inline I16 add(I16 sum, I16 codes, I16 x) {
    int8_t w[64], q[64];
    __builtin_memcpy(w, &codes.v, 64);
    __builtin_memcpy(q, &x.v, 64);
    for (int i = 0; i < 64; i++) sum.v[i / 4] += w[i] * q[i];
    return sum;
  }
};

#include "vec_common.h"
