// Partitions that rows of several sequences share (kernels.h SharedRun): K and V are read once for all of them, whose
// query rows are one product. What a row gets is kept in its slots and merged in order, as where a context is split:
// the bits are those of the unshared way. Included by attention.inl.
#pragma once

// The slots of rows that share come first; rows whose slots would not fit compute everything by themselves.
OCT_INLINE int at_shared(const AttentionArgs& p, const AtShape& sh, const SeqRun* s, int threads) {
  if (p.num_shared == 0 || s->shared == 0) return 0;
  const size_t slots = ((size_t)s->slot + (size_t)s->count * at_parts(p, s)) * p.q_heads;
  return slots * sh.slot * sizeof(float) <= (size_t)threads * OCT_ATTN_SPLIT_BYTES ? s->shared : 0;
}

// The slots of a sequence that shares.
OCT_INLINE float* at_shared_slots(const AttentionArgs& p, const AtShape& sh, const SeqRun* s, float* slots) {
  return slots + (size_t)s->slot * p.q_heads * sh.slot;
}

static void at_shared_load(const AttentionArgs& p, const AtShape& sh, const AtUnit& u, const SharedRow* const* rows,
                           float* q) {
  for (int r = 0; r < u.count; r++) {
    AtUnit one = u;
    one.seq = p.seqs + rows[r]->seq;
    one.row = rows[r]->row;
    one.count = 1;
#if OCTAVO_AMX
    if (u.tiles) {
      amx_load_q(p, sh, one, (uint16_t*)q + (size_t)r * sh.group * sh.dq);
      continue;
    }
#endif
    at_load_q(p, sh, one, at_query(p, sh, q, r * sh.group), at_query_block(sh));
  }
}

// One partition for `count` rows, at most sh.block.
static void at_shared_block(const AttentionArgs& p, const AtShape& sh, const AtOwn& w, const SharedRow* const* rows,
                            int count, int head, int part, float* slots) {
  constexpr int kTiles = OCT_ATTN_PARTITION / 32;
  const int n = count * sh.group;
  AtUnit u = {p.seqs + rows[0]->seq, 0, count, head, part, at_tiles(p, n), slots, 0};
  at_shared_load(p, sh, u, rows, w.q);
  at_clear(sh, w, n);
  for (int t = part * kTiles; t < (part + 1) * kTiles; t++) {
    const uint8_t* tile = at_tile(p.kv, u.seq, head, t);
    const int64_t ahead = t % kTiles < kTiles - 1 ? at_tile(p.kv, u.seq, head, t + 1) - tile : 0;
    at_scores(p, sh, u, w, 0, n, tile, ahead);
    if (p.softcap > 0)
      for (int r = 0; r < n; r++) at_mask(p, w.s + r * 32, t * 32, t * 32 + 31);
    at_softmax(p, u, w, 0, n);
    at_values(p, sh, u, w, 0, n, tile + sh.k_bytes, ahead);
  }
  for (int r = 0; r < count; r++) {
    const SeqRun* s = p.seqs + rows[r]->seq;
    const int parts = at_parts(p, s);
    float* own = at_shared_slots(p, sh, s, slots);
    for (int g = 0; g < sh.group; g++) {
      const size_t query = (size_t)rows[r]->row * p.q_heads + head * sh.group + g;
      at_keep(sh, w, r * sh.group + g, own + (query * parts + part) * sh.slot);
    }
  }
}

// Blocks [from, to) of a run's rows, one partition, one KV head: the thread that brought the partition into its cache
// uses it for all of them.
static void at_shared_unit(const AttentionArgs& p, const AtShape& sh, const AtOwn& w, const SharedRun& run, int head,
                           int part, int from, int to, float* slots, int threads) {
  const SharedRow* list[OCT_ATTN_ROWS];
  int count = 0;
  const int end = to * sh.block < run.count ? to * sh.block : run.count;
  for (int i = from * sh.block; i < end; i++) {
    const SharedRow* row = p.shared_rows + run.first + i;
    if (at_shared(p, sh, p.seqs + row->seq, threads) > 0) list[count++] = row;
    if (count == sh.block || (i == end - 1 && count > 0)) {
      at_shared_block(p, sh, w, list, count, head, part, slots);
      count = 0;
    }
  }
}

// Hands out the units of all runs, from counter value `next` on, of which `base` precede. Both are brought up to date.
static void at_shared_runs(const AttentionArgs& p, const AtShape& sh, const AtOwn& w, float* slots, const Team& team,
                           int64_t* next, int64_t* base) {
  for (int i = 0; i < p.num_shared; i++) {
    const SharedRun& run = p.shared[i];
    const int parts = run.to - run.from, blocks = (run.count + sh.block - 1) / sh.block;
    // Few units: blocks are divided too.
    const int chunks = (int64_t)parts * p.kv.kv_heads >= 4 * (int64_t)team.size ? 1 : blocks;
    const int64_t units = (int64_t)parts * p.kv.kv_heads * chunks;
    for (; *next < *base + units; *next = team.take()) {
      const int64_t at = *next - *base;
      const int chunk = (int)(at % chunks), head = (int)(at / chunks % p.kv.kv_heads);
      const int part = run.from + (int)(at / chunks / p.kv.kv_heads);
      at_shared_unit(p, sh, w, run, head, part, blocks * chunk / chunks, blocks * (chunk + 1) / chunks, slots,
                     team.size);
    }
    *base += units;
  }
}
