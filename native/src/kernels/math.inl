// exp and log of our own, so that every instruction set gives the same bits (docs/numerics.md).
#pragma once

// e^x. Below -86.5 the result is 0, above 88.72283 infinity; NaN stays NaN.
// x = n ln2 + r, |r| <= ln2 / 2; a degree-6 minimax polynomial in r; then 2^n in two factors.
OCT_INLINE F16 v_exp(F16 x) {
  const F16 lo = f_set(-86.5f), hi = f_set(88.72283f);
  F16 c = f_min(f_max(x, lo), hi);
  I16 n = f_to_i(f_mul(c, f_set(1.44269504f)));
  F16 nf = i_to_f(n);
  F16 r = f_fnma(nf, f_set(0.693145752f), c);
  r = f_fnma(nf, f_set(1.42860677e-6f), r);
  F16 p = f_set(1.38142216e-3f);
  p = f_fma(p, r, f_set(8.36889912e-3f));
  p = f_fma(p, r, f_set(4.16684039e-2f));
  p = f_fma(p, r, f_set(1.66665196e-1f));
  p = f_fma(p, r, f_set(0.499999940f));
  p = f_fma(p, r, f_set(1.0f));
  p = f_fma(p, r, f_set(1.0f));
  // n is in [-125, 128]: one factor would overflow at 128, so 2^n = 2^(n-1) * 2.
  F16 scale = as_f(i_shl<23>(i_add(n, i_set(126))));
  F16 y = f_mul(f_mul(p, f_set(2.0f)), scale);
  y = f_select(f_lt(x, lo), f_zero(), y);
  y = f_select(f_lt(hi, x), as_f(i_set(0x7f800000)), y);
  return f_select(f_isnan(x), x, y);
}
OCT_INLINE float s_exp(float x) {
  float t[16];
  f_store(t, v_exp(f_set(x)));
  return t[0];
}

// tanh from exp: t = exp(-2 |x|), (1 - t) / (1 + t) with the sign of x.
OCT_INLINE F16 v_tanh(F16 x) {
  const I16 sign = i_set((int32_t)0x80000000);
  const F16 mag = as_f(i_and(as_i(x), i_set(0x7fffffff)));
  const F16 t = v_exp(f_mul(mag, f_set(-2.0f)));
  const F16 y = f_div(f_sub(f_set(1.0f), t), f_add(f_set(1.0f), t));
  return as_f(i_or(as_i(y), i_and(as_i(x), sign)));
}
// c tanh(x / c).
OCT_INLINE F16 v_softcap(F16 x, float cap) { return f_mul(f_set(cap), v_tanh(f_div(x, f_set(cap)))); }

// log(1 + f) + n ln2 for f in [sqrt(1/2) - 1, sqrt(2) - 1] and a whole n: with s = f / (2 + f), log(1 + f) =
// f - f^2 / 2 + s (f^2 / 2 + R), R the tail of the series of 2 atanh(s).
OCT_INLINE F16 v_log_core(F16 f, F16 n) {
  const F16 s = f_div(f, f_add(f_set(2.0f), f));
  const F16 z = f_mul(s, s);
  F16 t = f_set(0.181818182f);
  t = f_fma(t, z, f_set(0.222222222f));
  t = f_fma(t, z, f_set(0.285714286f));
  t = f_fma(t, z, f_set(0.4f));
  t = f_fma(t, z, f_set(0.666666667f));
  t = f_mul(t, z);
  const F16 half = f_mul(f_mul(f_set(0.5f), f), f);
  const F16 low = f_fma(n, f_set(1.42860677e-6f), f_mul(s, f_add(half, t)));
  return f_fma(n, f_set(0.693145752f), f_sub(f, f_sub(half, low)));
}

// Splits x = 2^n (1 + f) with f as v_log_core wants it; x positive and normal.
OCT_INLINE void v_log_split(F16 x, F16& f, F16& n) {
  const I16 u = i_add(as_i(x), i_set(0x3f800000 - 0x3f3504f3));
  n = i_to_f(i_sub(i_shr<23>(u), i_set(127)));
  f = f_sub(as_f(i_add(i_and(u, i_set(0x007fffff)), i_set(0x3f3504f3))), f_set(1.0f));
}

// ln x. log(0) (denormals are 0) is -infinity, below 0 NaN, infinity and NaN stay.
OCT_INLINE F16 v_log(F16 x) {
  F16 f, n;
  v_log_split(x, f, n);
  F16 y = v_log_core(f, n);
  y = f_select(f_lt(x, f_zero()), as_f(i_set(0x7fc00000)), y);
  y = f_select(f_eq(x, f_zero()), as_f(i_set((int32_t)0xff800000)), y);
  y = f_select(f_eq(x, as_f(i_set(0x7f800000))), x, y);
  return f_select(f_isnan(x), x, y);
}
OCT_INLINE float s_log(float x) {
  float t[16];
  f_store(t, v_log(f_set(x)));
  return t[0];
}

// ln(1 + x) for x in (-1, 1]: the logarithm of u = 1 + x as rounded, and (x - (u - 1)) / u for what rounding lost.
OCT_INLINE F16 v_log1p(F16 x) {
  const F16 u = f_add(f_set(1.0f), x);
  const F16 lost = f_div(f_sub(x, f_sub(u, f_set(1.0f))), u);
  F16 f, n;
  v_log_split(u, f, n);
  return f_add(v_log_core(f, n), lost);
}
