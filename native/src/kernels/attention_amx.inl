// The bf16 products of attention on AMX tiles, for units of more than a few query rows: a tile holds 16 of them, so its
// last ones may compute rows that nobody reads. Included by attention.inl where there are tiles.
// In such a unit q stays bf16 (rows of dq), and p takes the first half of each row of s.
#pragma once

#define OCT_ATTN_TILE_ROWS 4  // units of fewer query rows go the lanes' way

static void amx_load_q(const AttentionArgs& p, const AtShape& sh, const AtUnit& u, uint16_t* q) {
  for (int r = 0; r < u.count; r++) {
    const uint16_t* row = (const uint16_t*)p.q + (size_t)(u.seq->row + u.row + r) * p.ld_q;
    __builtin_memcpy(q, row + (size_t)u.head * sh.group * sh.dq, (size_t)sh.group * sh.dq * 2);
    q += sh.group * sh.dq;
  }
}

// Scores of 16 G query rows: tiles 0..3 = row group x half of the positions.
template <int G>
static void amx_scores_group(const uint16_t* q, int dq, const uint16_t* k, float* s) {
  const int64_t row = (int64_t)dq * 2;
  const uint16_t* second = k + dq / 32 * 512;
  tile_zero<0>();
  tile_zero<1>();
  if (G == 2) {
    tile_zero<2>();
    tile_zero<3>();
  }
  for (int b = 0; b < dq; b += 32, k += 512, second += 512) {
    tile_load<4>(q + b, row);
    tile_load<6>(k, 64);
    tile_dp<0, 4, 6>();
    tile_load<7>(second, 64);
    tile_dp<1, 4, 7>();
    if (G == 2) {
      tile_load<5>(q + 16 * dq + b, row);
      tile_dp<2, 5, 6>();
      tile_dp<3, 5, 7>();
    }
  }
  tile_store<0>(s, 128);
  tile_store<1>(s + 16, 128);
  if (G == 2) {
    tile_store<2>(s + 16 * 32, 128);
    tile_store<3>(s + 16 * 32 + 16, 128);
  }
}

static void amx_scores(int n, const uint16_t* q, int dq, const uint16_t* k, float scale, float* s) {
  for (int r = 0; r < n; r += 32) {
    if (n - r > 16)
      amx_scores_group<2>(q + (size_t)r * dq, dq, k, s + r * 32);
    else
      amx_scores_group<1>(q + (size_t)r * dq, dq, k, s + r * 32);
  }
  for (int i = 0; i < n * 32; i += 16) f_store(s + i, f_mul(f_load(s + i), f_set(scale)));
}

// o += p . v for 16 query rows from `p`, of which `rows` count; `free`: what lies beyond them may be overwritten.
static void amx_values_group(const float* p, const uint16_t* v, int dv, float* o, int rows, bool free) {
  const int64_t row = (int64_t)dv * 4;
  alignas(64) float c[16 * 16];
  tile_load<4>(p, 128);
  for (int d = 0; d < dv; d += 16, v += 512) {
    tile_load<0>(o + d, row);
    tile_load<6>(v, 64);
    tile_dp<0, 4, 6>();
    if (rows >= 16 || free) {
      tile_store<0>(o + d, row);
      continue;
    }
    tile_store<0>(c, 64);
    for (int r = 0; r < rows; r++) f_store(o + r * dv + d, f_load(c + 16 * r));
  }
}

// `last`: no row of the unit comes after these n.
static void amx_values(int n, const float* p, const float* a, const uint16_t* v, int dv, float* o, bool last) {
  for (int r = 0; r < n; r++)
    for (int d = 0; d < dv; d += 16) f_store(o + r * dv + d, f_mul(f_load(o + r * dv + d), f_set(a[r])));
  for (int r = 0; r < n; r += 16)
    amx_values_group(p + r * 32, v, dv, o + (size_t)r * dv, n - r < 16 ? n - r : 16, last);
}
