// exp and log of our own, so that every instruction set gives the same bits (docs/numerics.md).

// e^x. Below -86.5 the result is 0, above 88.72283 infinity; NaN stays NaN.
// x = n ln2 + r, |r| <= ln2 / 2; a degree-6 polynomial in r; then 2^n in two factors.
OCT_INLINE F16 v_exp(F16 x) {
  const F16 lo = f_set(-86.5f), hi = f_set(88.72283f);
  F16 c = f_min(f_max(x, lo), hi);
  I16 n = f_to_i(f_mul(c, f_set(1.44269504f)));
  F16 nf = i_to_f(n);
  F16 r = f_fnma(nf, f_set(0.693145752f), c);
  r = f_fnma(nf, f_set(1.42860677e-6f), r);
  F16 p = f_set(1.38888889e-3f);
  p = f_fma(p, r, f_set(8.33333333e-3f));
  p = f_fma(p, r, f_set(4.16666667e-2f));
  p = f_fma(p, r, f_set(1.66666667e-1f));
  p = f_fma(p, r, f_set(0.5f));
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
