// What the machine can do at most: a pure read of memory and a pure run of multiply-adds, for comparison with kernels.

// Reads whole lines of 64 bytes; the sum keeps the compiler from leaving the loads out.
static uint64_t k_limit_read(const uint8_t* data, size_t bytes) {
  I16 a = i_set(0), b = a, c = a, d = a;
  size_t at = 0;
  for (; at + 256 <= bytes; at += 256) {
    const int32_t* p = (const int32_t*)(data + at);
    a = i_xor(a, i_load(p));
    b = i_xor(b, i_load(p + 16));
    c = i_xor(c, i_load(p + 32));
    d = i_xor(d, i_load(p + 48));
  }
  int32_t lanes[16];
  i_store(lanes, i_xor(i_xor(a, b), i_xor(c, d)));
  uint64_t sum = 0;
  for (int i = 0; i < 16; i++) sum += (uint32_t)lanes[i];
  return sum;
}

// `rounds` rounds of independent multiply-adds in registers; returns the floating-point operations done.
static double k_limit_multiply_add(int64_t rounds, float* sink) {
#if OCTAVO_AMX
  alignas(64) uint8_t zeros[1024] = {};
  tile_config();
  tile_zero<0>();
  tile_zero<1>();
  tile_zero<2>();
  tile_zero<3>();
  tile_load<4>(zeros, 64);
  tile_load<5>(zeros, 64);
  for (int64_t i = 0; i < rounds; i++) {
    tile_dp<0, 4, 5>();
    tile_dp<1, 4, 5>();
    tile_dp<2, 4, 5>();
    tile_dp<3, 4, 5>();
  }
  alignas(64) float out[256];
  tile_store<0>(out, 64);
  tile_release();
  *sink = out[0];
  return (double)rounds * 4 * 2 * 16 * 16 * 32;
#else
#if defined(__AVX512F__)
  constexpr int kChains = 16;
#else
  constexpr int kChains = 6;
#endif
  const F16 x = f_set(0.9999f), y = f_set(1e-6f);
  F16 c[kChains];
#pragma GCC unroll 16
  for (int j = 0; j < kChains; j++) c[j] = f_set((float)j);
  for (int64_t i = 0; i < rounds; i++) {
#pragma GCC unroll 16
    for (int j = 0; j < kChains; j++) c[j] = f_fma(c[j], x, y);
  }
  float sum = 0;
#pragma GCC unroll 16
  for (int j = 0; j < kChains; j++) sum += f_sum(c[j]);
  *sink = sum;
  return (double)rounds * kChains * 2 * 16;
#endif
}
