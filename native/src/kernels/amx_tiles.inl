// AMX tiles: 16 rows of 64 bytes each. With OCTAVO_AMX_EMULATE the same operations in lanes, so that code written on
// tiles runs, and is tested, on every machine. Tile numbers are template arguments: the instructions take constants.
// An op configures the tiles before it uses them (other code may share the thread); k_leave releases them.

#if OCTAVO_AMX_EMULATE

struct EmulatedTile {
  alignas(64) uint8_t row[16][64];
};
static thread_local EmulatedTile emulated_tiles[8];

static void tile_config() { __builtin_memset(emulated_tiles, 0, sizeof emulated_tiles); }
static void tile_release() { __builtin_memset(emulated_tiles, 0xff, sizeof emulated_tiles); }
template <int T>
OCT_INLINE void tile_zero() {
  __builtin_memset(&emulated_tiles[T], 0, sizeof(EmulatedTile));
}
template <int T>
OCT_INLINE void tile_load(const void* p, int64_t stride) {
  for (int r = 0; r < 16; r++) __builtin_memcpy(emulated_tiles[T].row[r], (const uint8_t*)p + r * stride, 64);
}
template <int T>
OCT_INLINE void tile_store(void* p, int64_t stride) {
  for (int r = 0; r < 16; r++) __builtin_memcpy((uint8_t*)p + r * stride, emulated_tiles[T].row[r], 64);
}
// C += A x B: an even chain and an odd chain over 16 pairs of bfloat16, then C + (even + odd).
template <int C, int A, int B>
static void tile_dp() {
  for (int r = 0; r < 16; r++) {
    const uint16_t* a = (const uint16_t*)emulated_tiles[A].row[r];
    F16 even = f_zero(), odd = f_zero();
    for (int i = 0; i < 16; i++) {
      F16 b_even, b_odd;
      pair_load((const uint16_t*)emulated_tiles[B].row[i], b_even, b_odd);
      even = f_fma(f_set(bf16_to_float(a[2 * i])), b_even, even);
      odd = f_fma(f_set(bf16_to_float(a[2 * i + 1])), b_odd, odd);
    }
    float* c = (float*)emulated_tiles[C].row[r];
    f_store(c, f_add(f_load(c), f_add(even, odd)));
  }
}

#else

struct alignas(64) TilePalette {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

static void tile_config() {
  TilePalette p = {};
  p.palette = 1;
  for (int i = 0; i < 8; i++) {
    p.row_bytes[i] = 64;
    p.rows[i] = 16;
  }
  _tile_loadconfig(&p);
}
static void tile_release() { _tile_release(); }
// Written out: the compiler's own forms are macros that take literals alone.
template <int T>
OCT_INLINE void tile_zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(T));
}
template <int T>
OCT_INLINE void tile_load(const void* p, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(T) : "memory");
}
template <int T>
OCT_INLINE void tile_store(void* p, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(stride), "i"(T) : "memory");
}
// C += A x B: an even chain and an odd chain over 16 pairs of bfloat16, then C + (even + odd).
template <int C, int A, int B>
OCT_INLINE void tile_dp() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}

#endif
