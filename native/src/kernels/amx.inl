// linear on AMX tiles: 16 or 32 rows by 1 or 2 column blocks in tiles 0..3, rows of the source in 4 and 5, weights in
// 6 and 7. Quantised weights are expanded to bfloat16 pairs first: tile by tile where one pass over the rows does,
// else a whole column block at once. One row, and the float32 path, go the AVX-512 way: the bits are the same.

constexpr int kPairBytes = 1024, kRing = 4;

OCT_INLINE I16 join_pair(F16 even, F16 odd) { return i_or(i_shr<16>(as_i(even)), as_i(odd)); }

static void pairs_q8(const uint8_t* tile, int32_t* w) {
  const F16 d = half_load((const uint16_t*)(tile + 512));
  for (int i = 0; i < 16; i++) {
    const int8_t* q = (const int8_t*)tile + 32 * i;
    const F16 even = round_weight(f_mul(i_to_f(i8_load(q)), d));
    const F16 odd = round_weight(f_mul(i_to_f(i8_load(q + 16)), d));
    i_store(w + 16 * i, join_pair(even, odd));
  }
}

static void pairs_q4(const uint8_t* tile, int32_t* w) {
  const F16 d = half_load((const uint16_t*)(tile + 256)), m = half_load((const uint16_t*)(tile + 288));
  const I16 low = i_set(15);
  for (int h = 0; h < 2; h++) {
    I16 even = i_load((const int32_t*)(tile + 128 * h)), odd = i_load((const int32_t*)(tile + 128 * h + 64));
    for (int t = 0; t < 8; t++) {
      const F16 e = round_weight(f_fma(d, i_to_f(i_and(even, low)), m));
      const F16 o = round_weight(f_fma(d, i_to_f(i_and(odd, low)), m));
      i_store(w + 16 * (8 * h + t), join_pair(e, o));
      even = i_shr<4>(even);
      odd = i_shr<4>(odd);
    }
  }
}

struct PairSink {
  int32_t* w;
  inline __attribute__((always_inline)) void put(int pair, F16 even, F16 odd) {
    i_store(w + 16 * pair, join_pair(even, odd));
  }
};
template <WeightKind kKind>
static void pairs_format(TileAt at, int32_t* w) {
  PairSink sink = {w};
  each_pair<kKind, true, Sixteen>(group_scale<kKind, Sixteen>(at.head, 0), at.tile, 0, sink);
}

// The bfloat16 pairs of a tile: those stored, or expanded into `room`.
OCT_INLINE const uint8_t* tile_pairs(WeightKind kind, TileAt at, uint8_t* room) {
  switch (kind) {
    case WeightKind::kF32:  // never comes here
    case WeightKind::kBf16:
      return at.tile;
    case WeightKind::kQ8_0:
      pairs_q8(at.tile, (int32_t*)room);
      break;
    case WeightKind::kQ4_1:
      pairs_q4(at.tile, (int32_t*)room);
      break;
#define OCT_CASE(kind)                                  \
  case WeightKind::kind:                                \
    pairs_format<WeightKind::kind>(at, (int32_t*)room); \
    break;
      OCT_EACH_KIND(OCT_CASE)
#undef OCT_CASE
  }
  return room;
}

// Up to 32 rows of the source: two groups of 16, each where it lies or copied and padded.
struct TileRows {
  const uint16_t* at[2];
  int64_t stride[2];  // bytes
  int64_t row;
  int rows;
};

template <int R, int B>
OCT_INLINE void zero_tiles() {
  tile_zero<0>();
  if (B == 2) tile_zero<1>();
  if (R == 2) tile_zero<2>();
  if (R == 2 && B == 2) tile_zero<3>();
}

// Adds the product of inputs 32 t .. 32 t + 31.
template <int R, int B>
OCT_INLINE void add_tile(const TileRows& x, int t, const uint8_t* const* w) {
  tile_load<4>(x.at[0] + 32 * t, x.stride[0]);
  tile_load<6>(w[0], 64);
  tile_dp<0, 4, 6>();
  if (B == 2) {
    tile_load<7>(w[1], 64);
    tile_dp<1, 4, 7>();
  }
  if (R == 2) {
    tile_load<5>(x.at[1] + 32 * t, x.stride[1]);
    tile_dp<2, 5, 6>();
    if (B == 2) tile_dp<3, 5, 7>();
  }
}

// Writes the tiles' rows out. `c` is room for one tile.
template <int R, int B>
static void finish_tiles(const LinearArgs& a, const TileRows& x, int64_t block, float* c) {
  for (int i = 0; i < R * B; i++) {
    if (i == 0) tile_store<0>(c, 64);
    if (i == 1 && B == 2) tile_store<1>(c, 64);
    if (i == 1 && B == 1) tile_store<2>(c, 64);
    if (i == 2) tile_store<2>(c, 64);
    if (i == 3) tile_store<3>(c, 64);
    const int first = 16 * (i / B), end = x.rows < first + 16 ? x.rows : first + 16;
    for (int r = first; r < end; r++) finish_row(a, x.row + r, block + i % B, f_load(c + 16 * (r - first)));
  }
}

struct AmxScratch {
  uint16_t* tail;  // [16][roundup(k, 32)]: the last rows, padded with zeros
  uint8_t* pairs;  // [tiles][2][1024], or a ring of kRing tiles
  float* c;        // one tile
};

OCT_INLINE AmxScratch amx_scratch(int k) {
  const int64_t tiles = (k + 31) / 32, slots = tiles < kRing ? kRing : tiles;
  uint8_t* p = (uint8_t*)thread_scratch((size_t)(slots * 2 * kPairBytes + 1024 + tiles * 1024));
  return {(uint16_t*)(p + slots * 2 * kPairBytes + 1024), p, (float*)(p + slots * 2 * kPairBytes)};
}

static void copy_tail(const LinearArgs& a, int64_t row, int rows, uint16_t* tail) {
  const size_t width = (size_t)(a.weight->k + 31) / 32 * 32;
  __builtin_memset(tail, 0, 16 * width * 2);
  for (int r = 0; r < rows; r++)
    __builtin_memcpy(tail + r * width, (const uint16_t*)a.src + (row + r) * a.ld_src, width * 2);
}

// Rows [row, row + rows), at most 32; the last a.rows % 16 rows are read from `tail`.
OCT_INLINE TileRows tile_rows(const LinearArgs& a, int64_t row, int rows, const uint16_t* tail) {
  TileRows x = {{tail, tail}, {0, 0}, row, rows};
  for (int g = 0; g < 2; g++) {
    const bool whole = rows >= 16 * (g + 1);
    x.stride[g] = whole ? (int64_t)a.ld_src * 2 : (int64_t)(a.weight->k + 31) / 32 * 64;
    if (whole) x.at[g] = (const uint16_t*)a.src + (row + 16 * g) * a.ld_src;
  }
  return x;
}

// One pass over at most 32 rows: each tile is expanded and used at once.
template <int R, int B>
static void amx_once(const LinearArgs& a, const AmxScratch& s, int64_t block) {
  const WeightKind kind = a.weight->kind;
  const int tiles = (a.weight->k + 31) / 32;
  const int64_t bytes = tile_bytes(kind);
  const uint8_t* data[2] = {block_data(*a.weight, block), block_data(*a.weight, block + B - 1)};
  const TileRows x = tile_rows(a, 0, a.rows, s.tail);
  zero_tiles<R, B>();
  for (int t = 0; t < tiles; t++) {
    const uint8_t* w[2];
    for (int b = 0; b < B; b++) {
      const TileAt at = tile_at(kind, data[b], t);
      for (int line = 0; line < bytes; line += 64) __builtin_prefetch(at.tile + 6 * bytes + line);
      w[b] = tile_pairs(kind, at, s.pairs + (t % kRing * 2 + b) * kPairBytes);
    }
    add_tile<R, B>(x, t, w);
  }
  finish_tiles<R, B>(a, x, block, s.c);
}

template <int R, int B>
static void amx_rows(const LinearArgs& a, const AmxScratch& s, int64_t block, const TileRows& x,
                     const uint8_t* const* w, int64_t step) {
  zero_tiles<R, B>();
  for (int t = 0; t < (a.weight->k + 31) / 32; t++) {
    const uint8_t* at[2] = {w[0] + t * step, w[B - 1] + t * step};
    add_tile<R, B>(x, t, at);
  }
  finish_tiles<R, B>(a, x, block, s.c);
}

// Many rows: whole column blocks are expanded, then passes of 32 rows.
template <int B>
static void amx_many(const LinearArgs& a, const AmxScratch& s, int64_t block) {
  const WeightKind kind = a.weight->kind;
  const uint8_t* w[2];
  int64_t step = kPairBytes;
  for (int b = 0; b < B; b++) {
    const uint8_t* data = block_data(*a.weight, block + b);
    w[b] = kind == WeightKind::kBf16 ? data : s.pairs + b * kPairBytes;
    if (kind == WeightKind::kBf16) continue;
    step = 2 * kPairBytes;
    for (int t = 0; t < (a.weight->k + 31) / 32; t++)
      tile_pairs(kind, tile_at(kind, data, t), s.pairs + (2 * t + b) * kPairBytes);
  }
  for (int64_t row = 0; row < a.rows; row += 32) {
    const int rows = a.rows - row < 32 ? (int)(a.rows - row) : 32;
    const TileRows x = tile_rows(a, row, rows, s.tail);
    if (rows > 16)
      amx_rows<2, B>(a, s, block, x, w, step);
    else
      amx_rows<1, B>(a, s, block, x, w, step);
  }
}

template <int B>
static void amx_block(const LinearArgs& a, const AmxScratch& s, int64_t block) {
  if (a.rows > 32)
    amx_many<B>(a, s, block);
  else if (a.rows > 16)
    amx_once<2, B>(a, s, block);
  else
    amx_once<1, B>(a, s, block);
}

static void k_linear(const LinearArgs& a, const Team& team) {
  if (linear_integer(a, team)) return;
  if (a.rows == 1 || a.src_f32 || a.weight->kind == WeightKind::kF32) return linear_lanes(a, team);
  const int64_t blocks = (a.weight->n + 15) / 16;
  int64_t block, end;
  team.range((blocks + 1) / 2, &block, &end);
  if (block == end) return;
  tile_config();
  const AmxScratch s = amx_scratch(a.weight->k);
  if (a.rows % 16) copy_tail(a, a.rows - a.rows % 16, a.rows % 16, s.tail);
  for (; block < end; block++) {
    if (2 * block + 1 < blocks)
      amx_block<2>(a, s, 2 * block);
    else
      amx_block<1>(a, s, 2 * block);
  }
}
