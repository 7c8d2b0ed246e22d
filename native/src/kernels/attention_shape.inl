// How attention's work and scratch are laid out. Included by attention.inl.
#pragma once

struct AtShape {
  int group;    // query heads of one KV head
  int dq, dv;   // strides of a row of q and of o, floats
  int block;    // rows of a sequence in one unit
  int rows;     // query rows in one unit, at most
  int k_bytes;  // where V begins in a tile
  int slot;     // floats of a partition slot: m, l, padding to 16, then o
};

// A thread's own scratch, `w` for a tile's keys or values as floats; the other arrays are indexed by query row = row * group + head.
struct AtOwn {
  float *q, *s, *o, *l, *m, *m_new, *a, *merged_o, *merged_m, *merged_l, *w;
};

struct AtUnit {
  const SeqRun* seq;
  int row, count;  // rows of the sequence
  int head;        // KV head
  int part;        // the partition, or -1 for all
  bool tiles;      // products on AMX tiles
  float* slots;    // of the sequence, where part >= 0
  int parts;       // slots a query row
};

static AtShape at_shape(const AttentionArgs& p) {
  AtShape s;
  const int d = p.kv.head_dim;
  s.group = p.q_heads / p.kv.kv_heads;
  s.dq = p.kv.f32 ? d : (d + 31) / 32 * 32;
  s.dv = p.kv.f32 ? d : (d + 15) / 16 * 16;
  s.block = s.group >= OCT_ATTN_ROWS ? 1 : OCT_ATTN_ROWS / s.group;
  s.rows = s.block * s.group;
  s.k_bytes = p.kv.f32 ? 32 * d * 4 : 32 * s.dq * 2;
  s.slot = 16 + (s.dv + 15) / 16 * 16;
  return s;
}

// Tiles read and write 16 rows from any row on.
OCT_INLINE size_t at_own_rows(const AtShape& s) { return (size_t)(s.rows + 15) / 16 * 16 + 16; }

static size_t at_own_floats(const AtShape& s) {
  const size_t rows = at_own_rows(s);
  const size_t tile = (size_t)OCT_ATTN_TILE * (s.dq > s.dv ? s.dq : s.dv);
  return tile + (rows * (size_t)(s.dq + 2 * s.dv + 32 + 16 + 5) + 63) / 16 * 16;
}

static AtOwn at_own(const AtShape& s, float* base) {
  const size_t rows = at_own_rows(s);
  AtOwn w;
  w.w = base;
  w.s = w.w + OCT_ATTN_TILE * (s.dq > s.dv ? s.dq : s.dv);
  w.l = w.s + rows * 32;
  w.m = w.l + rows * 16;
  w.m_new = w.m + rows;
  w.a = w.m_new + rows;
  w.merged_m = w.a + rows;
  w.merged_l = w.merged_m + rows;
  w.q = w.merged_l + rows;
  w.o = w.q + rows * s.dq;
  w.merged_o = w.o + rows * s.dv;
  return w;
}
