// linear of quantised weights by integers (docs/numerics.md: integer products): a row's inputs become signed bytes with a
// scale a group of 32, the codes of weights are multiplied with them as they are, and scales are applied to the integer
// sums. Rows are converted once an op, shared out over the team. Vectors of codes hold 4 inputs a column, in an order
// that depends on the kind; bytes are put into the same order.

constexpr int kIntegerBlock = 128;  // rows that follow each other tile by tile
constexpr float kIntegerLeast = 1e-30f;  // groups whose values are all smaller are zero

// 32 inputs of one row. Halves of 16 inputs where the kind's scales are of 16, else the first entry is the whole group's.
struct alignas(64) IntegerRow {
  int32_t q[8];
  float scale;
  float sum[2];      // scale times the sum of bytes
  int32_t start[2];  // what sums of products start at, so that codes count from their zero
};

OCT_INLINE constexpr bool is_integer(WeightKind kind) { return kind != WeightKind::kBf16 && kind != WeightKind::kF32; }
template <WeightKind kKind>
constexpr bool kIntegerHalves = format_of(kKind).scales == Scales::kSub16 || format_of(kKind).scales == Scales::kSub16Min;
// Codes are signed bytes, not counts from 0.
template <WeightKind kKind>
constexpr bool kIntegerSigned = format_of(kKind).bits == 8 || format_of(kKind).codebook;

// Which of a half's 16 inputs stands at each of its 16 bytes.
template <WeightKind kKind>
OCT_INLINE const uint8_t* integer_order() {
  static constexpr uint8_t kNatural[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  static constexpr uint8_t kNibbles[16] = {0, 4, 8, 12, 2, 6, 10, 14, 1, 5, 9, 13, 3, 7, 11, 15};
  static constexpr uint8_t kPlanes[16] = {0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15};
  return format_of(kKind).bits == 8 ? kNatural : kKind == WeightKind::kQ4_1 ? kNibbles : kPlanes;
}

OCT_INLINE F16 f_abs(F16 x) { return as_f(i_and(as_i(x), i_set(0x7fffffff))); }

template <WeightKind kKind, class Dot>
OCT_INLINE void integer_group(F16 low, F16 high, IntegerRow& to) {
  constexpr Format f = format_of(kKind);
  constexpr int kZero = kIntegerSigned<kKind> ? Dot::kOffset : has_min(f.scales) ? 0 : f.zero;
  const F16 greatest = f_set(3.40282347e38f), a0 = f_abs(low), a1 = f_abs(high);
  const bool finite = (m_bits(f_le(a0, greatest)) & m_bits(f_le(a1, greatest))) == 0xffff;
  const float most = f_hmax(f_max(a0, a1));
  const bool some = finite && most >= kIntegerLeast;
  const F16 inverse = f_set(some ? 127.0f / most : 0.0f);
  const I16 q0 = some ? f_to_i(f_mul(low, inverse)) : i_set(0), q1 = some ? f_to_i(f_mul(high, inverse)) : i_set(0);
  i8_store(to.q, q0, integer_order<kKind>());
  i8_store(to.q + 4, q1, integer_order<kKind>());
  to.scale = some ? most / 127.0f : finite ? 0.0f : __builtin_nanf("");
  int32_t sum[2] = {i_sum(q0), i_sum(q1)};
  if (!kIntegerHalves<kKind>) sum[0] += sum[1];
  for (int h = 0; h < 2; h++) {
    to.start[h] = -kZero * sum[h];
    to.sum[h] = to.scale * (float)sum[h];
  }
}

// Rows [begin, end) of the call.
template <WeightKind kKind, class Dot>
static void integer_rows(const LinearArgs& a, int64_t begin, int64_t end, IntegerRow* to) {
  const int tiles = a.weight->k / 32;
  for (int64_t row = begin; row < end; row++) {
    const int64_t first = row / kIntegerBlock * kIntegerBlock, left = a.rows - first;
    const int64_t rows = left < kIntegerBlock ? left : kIntegerBlock;
    const uint16_t* x = (const uint16_t*)a.src + row * a.ld_src;
    IntegerRow* y = to + first * tiles + (row - first);
    for (int t = 0; t < tiles; t++, y += rows, x += 32)
      integer_group<kKind, Dot>(bf16_load(x), bf16_load(x + 16), *y);
  }
}

// A tile of a column block: 8 vectors of codes, and its scales.
template <WeightKind kKind>
struct IntegerTile {
  I16 code[8];
  TileScale<Sixteen> scale[2];
};
template <WeightKind kKind, class Dot>
OCT_INLINE void integer_tile(TileAt at, const GroupScale<Sixteen>& group, IntegerTile<kKind>& t) {
  constexpr WeightKind K = kKind;
  if constexpr (format_of(K).bits == 8) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) t.code[i] = Dot::signed_codes(i_columns(at.tile + 64 * i));
  } else if constexpr (K == WeightKind::kQ4_1) {
#pragma GCC unroll 4
    for (int g = 0; g < 4; g++) {
      const I16 v = i_load((const int32_t*)(at.tile + 64 * g)), low = i_set(0x0f0f0f0f);
      t.code[2 * g] = i_and(v, low);
      t.code[2 * g + 1] = i_and(i_shr<4>(v), low);
    }
  } else {
    t.code[0] = four_codes<K, Sixteen, 0, 0, 0>(at.tile);
    t.code[1] = four_codes<K, Sixteen, 0, 0, 1>(at.tile);
    t.code[2] = four_codes<K, Sixteen, 0, 1, 0>(at.tile);
    t.code[3] = four_codes<K, Sixteen, 0, 1, 1>(at.tile);
    t.code[4] = four_codes<K, Sixteen, 1, 0, 0>(at.tile);
    t.code[5] = four_codes<K, Sixteen, 1, 0, 1>(at.tile);
    t.code[6] = four_codes<K, Sixteen, 1, 1, 0>(at.tile);
    t.code[7] = four_codes<K, Sixteen, 1, 1, 1>(at.tile);
    if constexpr (format_of(K).codebook) {
#pragma GCC unroll 8
      for (int i = 0; i < 8; i++) t.code[i] = Dot::signed_codes(i_xor(t.code[i], i_set((int32_t)0x80808080)));
    }
  }
  t.scale[0] = tile_scale<K, Sixteen>(group, at.tile, 0, 0);
  if constexpr (kIntegerHalves<K>) t.scale[1] = tile_scale<K, Sixteen>(group, at.tile, 0, 1);
}

// c of B column blocks plus their tiles' products with one row. Bytes are spread over a vector once for all blocks. Two
// chains of sums a block: their instructions take long, and wait for each other.
template <WeightKind kKind, class Dot, int B>
OCT_INLINE void integer_add(const IntegerTile<kKind>* t, const IntegerRow& x, F16* c) {
  constexpr bool kHalves = kIntegerHalves<kKind>;
  I16 sum[B][2];
#pragma GCC unroll 2
  for (int b = 0; b < B; b++) {
    sum[b][0] = i_set(x.start[0]);
    sum[b][1] = i_set(kHalves ? x.start[1] : 0);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) {
    const I16 q = i_set(x.q[i % 2 * 4 + i / 2]);
#pragma GCC unroll 2
    for (int b = 0; b < B; b++)
      sum[b][i % 2] = Dot::template add<kIntegerSigned<kKind>>(sum[b][i % 2], t[b].code[i % 2 * 4 + i / 2], q);
  }
  const F16 scale = f_set(x.scale);
#pragma GCC unroll 2
  for (int b = 0; b < B; b++)
#pragma GCC unroll 2
    for (int h = 0; h < (kHalves ? 2 : 1); h++) {
      const I16 s = kHalves ? sum[b][h] : i_add(sum[b][0], sum[b][1]);
      c[b] = f_fma(t[b].scale[h].d, f_mul(i_to_f(s), scale), c[b]);
      if constexpr (has_min(format_of(kKind).scales)) c[b] = f_fma(t[b].scale[h].m, f_set(x.sum[h]), c[b]);
    }
}

// One row: what lies some tiles ahead is fetched meanwhile.
template <WeightKind kKind, class Dot>
static void integer_one(const LinearArgs& a, const IntegerRow* x, int64_t begin, int64_t end) {
  constexpr int64_t kAhead = 4096;
  const int tiles = a.weight->k / 32;
  for (int64_t block = begin; block < end; block++) {
    const uint8_t* data = block_data(*a.weight, block);
    F16 c = f_zero();
    for (int t = 0; t < tiles; t++) {
      const TileAt at = tile_at(kKind, data, t);
      for (int line = 0; line < tile_bytes(kKind); line += 64) __builtin_prefetch(at.tile + kAhead + line);
      IntegerTile<kKind> tile;
      integer_tile<kKind, Dot>(at, group_scale<kKind, Sixteen>(at.head, 0), tile);
      integer_add<kKind, Dot, 1>(&tile, x[t], &c);
    }
    finish_row(a, 0, block, c);
  }
}

// One tile of B column blocks for many rows. c is [rows][B][16].
template <WeightKind kKind, class Dot, int B>
static __attribute__((noinline)) void integer_micro(const TileAt* at, const IntegerRow* x, int rows, float* c) {
  IntegerTile<kKind> tile[B];
#pragma GCC unroll 2
  for (int b = 0; b < B; b++) integer_tile<kKind, Dot>(at[b], group_scale<kKind, Sixteen>(at[b].head, 0), tile[b]);
  for (int r = 0; r < rows; r++, c += 16 * B) {
    F16 sum[B];
#pragma GCC unroll 2
    for (int b = 0; b < B; b++) sum[b] = f_load(c + 16 * b);
    integer_add<kKind, Dot, B>(tile, x[r], sum);
#pragma GCC unroll 2
    for (int b = 0; b < B; b++) f_store(c + 16 * b, sum[b]);
  }
}
template <WeightKind kKind, class Dot, int B>
static void integer_blocks(const LinearArgs& a, const IntegerRow* x, int64_t row, int rows, int64_t block, float* c) {
  const int tiles = a.weight->k / 32;
  for (int i = 0; i < 16 * B * rows; i += 16) f_store(c + i, f_zero());
  for (int t = 0; t < tiles; t++) {
    TileAt at[B];
    for (int b = 0; b < B; b++) at[b] = tile_at(kKind, block_data(*a.weight, block + b), t);
    integer_micro<kKind, Dot, B>(at, x + (int64_t)t * rows, rows, c);
  }
  for (int r = 0; r < rows; r++)
    for (int b = 0; b < B; b++) finish_row(a, row + r, block + b, f_load(c + (r * B + b) * 16));
}

#if defined(__AVX512F__)
constexpr int kIntegerBlocks = 2;
#else
constexpr int kIntegerBlocks = 1;
#endif

// Column blocks [begin, end) for rows [row, row + rows).
template <WeightKind kKind, class Dot>
static void integer_columns(const LinearArgs& a, const IntegerRow* x, int64_t row, int rows, int64_t begin, int64_t end) {
  if (a.rows == 1) return integer_one<kKind, Dot>(a, x, begin, end);
  alignas(64) float c[kIntegerBlock * kIntegerBlocks * 16];
  int64_t block = begin;
  for (; block + kIntegerBlocks <= end; block += kIntegerBlocks)
    integer_blocks<kKind, Dot, kIntegerBlocks>(a, x, row, rows, block, c);
  if constexpr (kIntegerBlocks > 1)
    for (; block < end; block++) integer_blocks<kKind, Dot, 1>(a, x, row, rows, block, c);
}

// Threads convert rows together, then take pieces of columns.
template <WeightKind kKind, class Dot>
static void integer_product(const LinearArgs& a, const Team& team) {
  const int64_t tiles = a.weight->k / 32, blocks = (a.weight->n + 15) / 16, piece = piece_blocks(blocks, team.size);
  const int64_t pieces = (blocks + piece - 1) / piece, row_blocks = (a.rows + kIntegerBlock - 1) / kIntegerBlock;
  IntegerRow* x = (IntegerRow*)(team.size > 1 ? a.converted : thread_scratch((size_t)(a.rows * tiles) * sizeof *x));
  if (team.size == 1 || !a.is_converted) {
    int64_t begin, end;
    team.range(a.rows, &begin, &end);
    integer_rows<kKind, Dot>(a, begin, end, x);
  }
  if (team.size > 1) team.reset_counter();
  for (int64_t alone = 0;; alone++) {
    const int64_t unit = team.size > 1 ? team.take() : alone;
    if (unit >= pieces * row_blocks) return;
    const int64_t row = unit / pieces * kIntegerBlock, begin = unit % pieces * piece;
    const int rows = (int)(a.rows - row < kIntegerBlock ? a.rows - row : kIntegerBlock);
    integer_columns<kKind, Dot>(a, x + row * tiles, row, rows, begin, begin + piece < blocks ? begin + piece : blocks);
  }
}

template <class Dot>
static void integer_any(const LinearArgs& a, const Team& team) {
  switch (a.weight->kind) {
    case WeightKind::kBf16:  // is_integer refuses them
    case WeightKind::kF32:
      return;
    case WeightKind::kQ8_0:
      return integer_product<WeightKind::kQ8_0, Dot>(a, team);
    case WeightKind::kQ4_1:
      return integer_product<WeightKind::kQ4_1, Dot>(a, team);
#define OCT_CASE(kind)   \
  case WeightKind::kind: \
    return integer_product<WeightKind::kind, Dot>(a, team);
      OCT_EACH_KIND(OCT_CASE)
#undef OCT_CASE
  }
}

// Whether it served the call.
static bool linear_integer(const LinearArgs& a, const Team& team) {
  if (!a.integer || !is_integer(a.weight->kind)) return false;
#if defined(__AVX512F__)
  if (__builtin_cpu_supports("avx512vnni"))
    integer_any<DotInstruction>(a, team);
  else
#endif
    integer_any<DotPairs>(a, team);
  return true;
}
