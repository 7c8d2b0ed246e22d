// Philox4x32-10 (Salmon et al. 2011): 16 counters at once, and the sampler's noise made from it (docs/numerics.md).
#pragma once

// c[0..3]: the counters' words in, the random words out.
OCT_INLINE void philox_rounds(I16 c[4], uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; round++) {
    I16 hi0, lo0, hi1, lo1;
    u_mul_wide(c[0], 0xd2511f53u, hi0, lo0);
    u_mul_wide(c[2], 0xcd9e8d57u, hi1, lo1);
    c[0] = i_xor(i_xor(hi1, c[1]), i_set((int32_t)k0));
    c[1] = lo1;
    c[2] = i_xor(i_xor(hi0, c[3]), i_set((int32_t)k1));
    c[3] = lo0;
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
}

// The noise words of the tokens of four chunks of 16: words[16 j + i] is that of token 16 chunk[j] + i.
static void philox_chunks(const SampleRow* p, const int32_t* chunk, int32_t* words) {
  int32_t t[4][16];
  for (int i = 0; i < 16; i++) t[0][i] = 4 * chunk[i / 4] + i % 4;
  I16 c[4] = {i_load(t[0]), i_set(p->position), i_set(p->choice), i_set(0)};
  philox_rounds(c, (uint32_t)p->seed, (uint32_t)(p->seed >> 32));
  for (int w = 0; w < 4; w++) i_store(t[w], c[w]);
  for (int i = 0; i < 16; i++)
    for (int w = 0; w < 4; w++) words[4 * i + w] = t[w][i];
}

// f = min(fl(x + 1/2) 2^-32, 1 - 2^-24): x + 1/2 rounds once.
OCT_INLINE F16 noise_fraction(I16 x) {
  const F16 high = i_to_f(i_shr<16>(x)), low = f_add(i_to_f(i_and(x, i_set(0xffff))), f_set(0.5f));
  return f_min(f_mul(f_fma(high, f_set(65536.0f), low), f_set(0x1p-32f)), f_set(1.0f - 0x1p-24f));
}
// log(E), E = -log1p(-f).
OCT_INLINE F16 noise_log(F16 f) {
  const F16 e = f_sub(f_zero(), v_log1p(f_sub(f_zero(), f)));
  return v_log(e);
}
