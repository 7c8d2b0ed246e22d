// Built from the primitives of one vec_*.h alone, so equal on every instruction set.

// Loads the first n (0..16) lanes; the others are `fill`.
OCT_INLINE F16 f_load_n(const float* p, int n, float fill) {
  if (n >= 16) return f_load(p);
  float t[16];
  for (int i = 0; i < 16; i++) t[i] = i < n ? p[i] : fill;
  return f_load(t);
}
OCT_INLINE void f_store_n(float* p, F16 x, int n) {
  if (n >= 16) {
    f_store(p, x);
    return;
  }
  float t[16];
  f_store(t, x);
  for (int i = 0; i < n; i++) p[i] = t[i];
}

// bfloat16 (upper half of a float) to float.
OCT_INLINE F16 bf16_load(const uint16_t* p) { return as_f(i_shl<16>(u16_load(p))); }

// Rounds to the nearest bfloat16, ties to even, NaN to the quiet NaN; the result's low 16 bits are zero.
OCT_INLINE I16 bf16_round_bits(F16 x) {
  I16 u = as_i(x);
  I16 lsb = i_and(i_shr<16>(u), i_set(1));
  I16 r = i_and(i_add(i_add(u, i_set(0x7fff)), lsb), i_set((int32_t)0xffff0000));
  return as_i(f_select(f_isnan(x), as_f(i_set(0x7fc00000)), as_f(r)));
}
OCT_INLINE F16 bf16_round(F16 x) { return as_f(bf16_round_bits(x)); }
// The same for values known to be finite (expanded weights, probabilities).
OCT_INLINE F16 bf16_round_finite(F16 x) {
  I16 u = as_i(x);
  I16 lsb = i_and(i_shr<16>(u), i_set(1));
  return as_f(i_and(i_add(i_add(u, i_set(0x7fff)), lsb), i_set((int32_t)0xffff0000)));
}
OCT_INLINE void bf16_store(uint16_t* p, F16 x) { u16_store(p, i_shr<16>(bf16_round_bits(x))); }
OCT_INLINE void bf16_store_n(uint16_t* p, F16 x, int n) {
  if (n >= 16) {
    bf16_store(p, x);
    return;
  }
  uint16_t t[16];
  bf16_store(t, x);
  for (int i = 0; i < n; i++) p[i] = t[i];
}
OCT_INLINE F16 bf16_load_n(const uint16_t* p, int n) {
  if (n >= 16) return bf16_load(p);
  uint16_t t[16];
  for (int i = 0; i < 16; i++) t[i] = i < n ? p[i] : (uint16_t)0;
  return bf16_load(t);
}
// 16 pairs of bfloat16 (one row of a packed tile): the first and the second of each pair.
OCT_INLINE void pair_load(const uint16_t* p, F16& even, F16& odd) {
  I16 u = i_load((const int32_t*)p);
  even = as_f(i_shl<16>(u));
  odd = as_f(i_and(u, i_set((int32_t)0xffff0000)));
}

// Scalars, used where one value is left over; the same bits as the vector forms.
OCT_INLINE float bf16_to_float(uint16_t h) {
  uint32_t u = (uint32_t)h << 16;
  float f;
  __builtin_memcpy(&f, &u, 4);
  return f;
}
OCT_INLINE uint16_t bf16_from_float(float f) {
  uint32_t u;
  __builtin_memcpy(&u, &f, 4);
  if (f != f) return 0x7fc0;
  return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
OCT_INLINE float bf16_round1(float f) { return bf16_to_float(bf16_from_float(f)); }
