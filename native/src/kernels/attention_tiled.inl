// Attention over pages, online softmax (docs/numerics.md: tiled). Included by attention.inl.
//
// A work unit is a block of rows of one sequence for one KV head: its rows x (query heads of that KV head) share each
// pass over a tile. Where there are few units and long contexts, a unit is one partition of that; what partitions gave
// is then kept in slots of shared scratch and merged in order after a barrier. How work is divided changes no bit.

OCT_INLINE int at_first_seen(const AttentionArgs& p, int position) {
  return p.window > 0 && position >= p.window ? position - p.window + 1 : 0;
}

OCT_INLINE const uint8_t* at_tile(const KVLayer& kv, const SeqRun* seq, int head, int tile) {
  const int tiles = kv.block_size / 32;
  return kv.base + seq->block_table[tile / tiles] * kv.block_stride + head * kv.head_stride +
         tile % tiles * kv.tile_stride;
}

// Row r's scores in a tile: soft cap, then -inf where it does not see the position.
static void at_mask(const AttentionArgs& p, float* s, int tile_start, int position) {
  F16 x[2] = {f_load(s), f_load(s + 16)};
  const F16 none = as_f(i_set((int32_t)0xff800000));
  const int first = at_first_seen(p, position) - tile_start, last = position - tile_start;
  for (int h = 0; h < 2; h++) {
    if (p.softcap > 0) x[h] = v_softcap(x[h], p.softcap);
    const I16 j = i_add(i_lanes(), i_set(16 * h));
    x[h] = f_select(i_gt(j, i_set(last)), none, x[h]);
    x[h] = f_select(i_gt(i_set(first), j), none, x[h]);
    f_store(s + 16 * h, x[h]);
  }
}

// Softmax of rows [0, n) over one tile: scores become probabilities, m, l and the factor a are brought up to date.
static void at_softmax(const AttentionArgs& p, const AtUnit& u, const AtOwn& w, int at, int n) {
  const F16 none = as_f(i_set((int32_t)0xff800000));
  for (int r = at; r < at + n; r++) {
    const float m = f_hmax(f_max(f_load(w.s + r * 32), f_load(w.s + r * 32 + 16)));
    w.m_new[r] = w.m[r] > m ? w.m[r] : m;
  }
  for (int r = at; r < at + n; r += 16) {  // arrays have room for whole vectors; lanes beyond are never used
    const F16 m = f_load_n(w.m + r, at + n - r, 0.0f), next = f_load_n(w.m_new + r, at + n - r, 0.0f);
    const F16 a = f_select(f_eq(m, none), f_zero(), v_exp(f_sub(m, next)));
    f_store_n(w.a + r, a, at + n - r);
  }
  for (int r = at; r < at + n; r++) {
    const F16 m = f_set(w.m_new[r]);
    F16 p0 = v_exp(f_sub(f_load(w.s + r * 32), m)), p1 = v_exp(f_sub(f_load(w.s + r * 32 + 16), m));
    if (!p.kv.f32) {
      p0 = bf16_round_finite(p0);
      p1 = bf16_round_finite(p1);
    }
    if (u.tiles) {
      u16_store((uint16_t*)(w.s + r * 32), i_shr<16>(as_i(p0)));
      u16_store((uint16_t*)(w.s + r * 32) + 16, i_shr<16>(as_i(p1)));
    } else {
      f_store(w.s + r * 32, p0);
      f_store(w.s + r * 32 + 16, p1);
    }
    f_store(w.l + r * 16, f_fma(f_load(w.l + r * 16), f_set(w.a[r]), f_add(p0, p1)));
    w.m[r] = w.m_new[r];
  }
}

// Where query row i lies: on the float32 path rows are whole, on the bf16 path in blocks of 32 dims (attention_dot.inl).
OCT_INLINE float* at_query(const AttentionArgs& p, const AtShape& sh, float* q, int i) {
  return q + (size_t)i * (p.kv.f32 ? sh.dq : 32);
}
OCT_INLINE int64_t at_query_block(const AtShape& sh) { return (int64_t)at_own_rows(sh) * 32; }

static void at_load_q(const AttentionArgs& p, const AtShape& sh, const AtUnit& u, float* q, int64_t q_block) {
  for (int r = 0; r < u.count; r++) {
    const size_t row = (size_t)(u.seq->row + u.row + r) * p.ld_q;
    for (int g = 0; g < sh.group; g++, q = at_query(p, sh, q, 1)) {
      const size_t at = row + (size_t)(u.head * sh.group + g) * sh.dq;
      for (int d = 0; d < sh.dq; d += 16) {
        const int n = sh.dq - d;
        if (p.kv.f32)
          f_store_n(q + d, f_load_n((const float*)p.q + at + d, n, 0.0f), n);
        else
          f_store(q + d / 32 * q_block + d % 32, bf16_load((const uint16_t*)p.q + at + d));
      }
    }
  }
}

// The two products of query rows [at, at + n) with one tile's keys or values.
static void at_scores(const AttentionArgs& p, const AtShape& sh, const AtUnit& u, const AtOwn& w, int at, int n,
                      const uint8_t* k, int64_t ahead) {
#if OCTAVO_AMX
  if (u.tiles) {
    const uint16_t* q = (const uint16_t*)w.q + (size_t)at * sh.dq;
    return amx_scores(n, q, sh.dq, (const uint16_t*)k, p.scale, w.s + at * 32);
  }
#else
  (void)u;
#endif
  const float* q = at_query(p, sh, w.q, at);
  if (at_many(p, sh, n)) return at_scores_many(n, q, at_query_block(sh), sh.dq, k, ahead, p.scale, w.w, w.s + at * 32);
  at_scores_rows<OCT_ATTN_R>(p.kv.f32, n, q, at_query_block(sh), sh.dq, k, ahead, p.scale, w.s + at * 32);
}

static void at_values(const AttentionArgs& p, const AtShape& sh, const AtUnit& u, const AtOwn& w, int at, int n,
                      const uint8_t* v, int64_t ahead) {
  float *s = w.s + at * 32, *a = w.a + at, *o = w.o + at * sh.dv;
#if OCTAVO_AMX
  if (u.tiles) return amx_values(n, s, a, (const uint16_t*)v, sh.dv, o, at + n == u.count * sh.group);
#else
  (void)u;
#endif
  if (at_many(p, sh, n)) return at_values_many(n, s, a, v, ahead, sh.dv, w.w, o);
  at_values_rows<OCT_ATTN_R>(p.kv.f32, n, s, a, v, ahead, sh.dv, o);
}

// n query rows at the beginning of a partition.
static void at_clear(const AtShape& sh, const AtOwn& w, int n) {
  for (int r = 0; r < n; r++) {
    w.m[r] = -__builtin_inff();
    f_store(w.l + r * 16, f_zero());
  }
  for (int i = 0; i < n * sh.dv; i += 16) f_store_n(w.o + i, f_zero(), n * sh.dv - i);
}

// One partition of a unit's rows, from scratch.
static void at_partition(const AttentionArgs& p, const AtShape& sh, const AtUnit& u, const AtOwn& w, int part) {
  const int start = u.seq->start + u.row, last = start + u.count - 1;
  at_clear(sh, w, u.count * sh.group);
  int from = part * OCT_ATTN_PARTITION, to = from + OCT_ATTN_PARTITION - 1;
  const int seen = at_first_seen(p, start);
  from = from > seen ? from : seen;
  to = to < last ? to : last;
  for (int t = from / 32; t <= to / 32; t++) {
    // Rows that see a position of this tile: those at or after its start whose window reaches its end.
    int lo = t * 32 > start ? t * 32 - start : 0, hi = u.count;
    while (lo < hi && at_first_seen(p, start + hi - 1) > t * 32 + 31) hi--;
    if (lo >= hi) continue;
    const uint8_t* tile = at_tile(p.kv, u.seq, u.head, t);
    const int at = lo * sh.group, rows = (hi - lo) * sh.group;
    // Tiles lie anywhere: the hardware cannot know the next one.
    const int64_t ahead = t < to / 32 ? at_tile(p.kv, u.seq, u.head, t + 1) - tile : 0;
    at_scores(p, sh, u, w, at, rows, tile, ahead);
    for (int r = lo; r < hi; r++) {
      const int position = start + r;
      if (position >= t * 32 + 31 && at_first_seen(p, position) <= t * 32 && p.softcap <= 0) continue;
      for (int g = 0; g < sh.group; g++) at_mask(p, w.s + (r * sh.group + g) * 32, t * 32, position);
    }
    at_softmax(p, u, w, at, rows);
    at_values(p, sh, u, w, at, rows, tile + sh.k_bytes, ahead);
  }
}

// (M, L, O) takes in the next partition (m, l, o).
static void at_merge(float* big_m, float* big_l, float* big_o, float m, float l, const float* o, int dv, bool first) {
  if (first) {
    *big_m = m;
    *big_l = l;
    for (int d = 0; d < dv; d += 16) f_store_n(big_o + d, f_load_n(o + d, dv - d, 0.0f), dv - d);
    return;
  }
  const float next = *big_m > m ? *big_m : m;
  const F16 old_f = f_set(s_exp(*big_m - next)), new_f = f_set(s_exp(m - next));
  for (int d = 0; d < dv; d += 16) {
    const F16 old = f_mul(f_load_n(big_o + d, dv - d, 0.0f), old_f);
    f_store_n(big_o + d, f_fma(f_load_n(o + d, dv - d, 0.0f), new_f, old), dv - d);
  }
  float t[16];
  f_store(t, f_fma(f_set(l), new_f, f_mul(f_set(*big_l), old_f)));
  *big_l = t[0];
  *big_m = next;
}

static void at_write(const AttentionArgs& p, int row, int head, float m, float l, const float* o) {
  const int d = p.kv.head_dim;
  float t[16];
  if (p.sinks) {
    f_store(t, f_add(f_set(l), v_exp(f_sub(f_set(p.sinks[head]), f_set(m)))));
    l = t[0];
  }
  const size_t at = (size_t)row * p.ld_dst + (size_t)head * d;
  for (int i = 0; i < d; i += 16) {
    const F16 y = f_div(f_load_n(o + i, d - i, 0.0f), f_set(l));
    if (p.kv.f32)
      f_store_n((float*)p.dst + at + i, y, d - i);
    else
      bf16_store_n((uint16_t*)p.dst + at + i, y, d - i);
  }
}

// Partitions that rows of a sequence see: from this one, so many.
OCT_INLINE int at_first_part(const AttentionArgs& p, const SeqRun* s) {
  return at_first_seen(p, s->start) / OCT_ATTN_PARTITION;
}
OCT_INLINE int at_parts(const AttentionArgs& p, const SeqRun* s) {
  return (s->start + s->count - 1) / OCT_ATTN_PARTITION + 1 - at_first_part(p, s);
}

// What a partition gave query row i, to its slot.
static void at_keep(const AtShape& sh, const AtOwn& w, int i, float* slot) {
  slot[0] = w.m[i];
  slot[1] = f_sum(f_load(w.l + i * 16));
  for (int d = 0; d < sh.dv; d++) slot[16 + d] = w.o[i * sh.dv + d];
}

// A partition's end: its rows are merged into the thread's own state, or kept in slots.
static void at_finish(const AttentionArgs& p, const AtShape& sh, const AtUnit& u, const AtOwn& w, int part) {
  for (int r = 0; r < u.count; r++) {
    const int position = u.seq->start + u.row + r;
    const int first = at_first_seen(p, position) / OCT_ATTN_PARTITION;
    if (part < first || part > position / OCT_ATTN_PARTITION) continue;
    for (int g = 0; g < sh.group; g++) {
      const int i = r * sh.group + g;
      if (u.part < 0) {
        const float l = f_sum(f_load(w.l + i * 16));
        at_merge(w.merged_m + i, w.merged_l + i, w.merged_o + i * sh.dv, w.m[i], l, w.o + i * sh.dv, sh.dv,
                 part == first);
        continue;
      }
      const size_t query = (size_t)(u.row + r) * p.q_heads + u.head * sh.group + g;
      at_keep(sh, w, i, u.slots + (query * u.parts + part - at_first_part(p, u.seq)) * sh.slot);
    }
  }
}

static void at_run(const AttentionArgs& p, const AtShape& sh, const AtUnit& u, const AtOwn& w) {
  const int start = u.seq->start + u.row, last = start + u.count - 1;
  const int first = at_first_seen(p, start) / OCT_ATTN_PARTITION, end = last / OCT_ATTN_PARTITION;
  if (u.part >= 0 && (u.part < first || u.part > end)) return;
#if OCTAVO_AMX
  if (u.tiles)
    amx_load_q(p, sh, u, (uint16_t*)w.q);
  else
#endif
    at_load_q(p, sh, u, w.q, at_query_block(sh));
  for (int part = u.part < 0 ? first : u.part; part <= (u.part < 0 ? end : u.part); part++) {
    at_partition(p, sh, u, w, part);
    at_finish(p, sh, u, w, part);
  }
  if (u.part >= 0) return;
  for (int r = 0; r < u.count; r++)
    for (int g = 0; g < sh.group; g++) {
      const int i = r * sh.group + g;
      at_write(p, u.seq->row + u.row + r, u.head * sh.group + g, w.merged_m[i], w.merged_l[i], w.merged_o + i * sh.dv);
    }
}

// Whether a unit of n query rows uses AMX tiles: the bits are the same.
OCT_INLINE bool at_tiles(const AttentionArgs& p, int n) {
#if OCTAVO_AMX
  return !p.kv.f32 && n >= OCT_ATTN_TILE_ROWS;
#else
  (void)p, (void)n;
  return false;
#endif
}
