// How tiled attention is divided into units, and what was kept in slots merged. Included by attention.inl.
#pragma once

// Where a sequence's partitions go, and which of them are its own units.
struct AtWay {
  float* slots;     // null: merged as they come
  int first, parts; // its own partitions in slots
};

// How all sequences are divided: what each op decides once, alike on every thread.
struct AtPlan {
  bool split;         // long contexts of sequences that share nothing are divided by partition
  float *shared, *own;  // slots of sequences that share, and of those that are split
};

// Contexts are divided by partition where there are few units, and room for what they leave.
static AtPlan at_plan(const AttentionArgs& p, const AtShape& sh, float* slots, int threads) {
  size_t units = 0, floats = 0, shared = 0;
  for (int i = 0; i < p.num_seqs; i++) {
    const SeqRun* s = p.seqs + i;
    const size_t slot = (size_t)p.q_heads * sh.slot, rows = (size_t)s->count * at_parts(p, s);
    if (at_shared(p, sh, s, threads) > 0) {
      shared = ((size_t)s->slot + rows) * slot;
      continue;
    }
    units += (size_t)((s->count + sh.block - 1) / sh.block) * p.kv.kv_heads;
    if (at_parts(p, s) > 1) floats += rows * slot;
  }
  const bool room = (floats + shared) * sizeof(float) <= (size_t)threads * OCT_ATTN_SPLIT_BYTES;
  return {threads > 1 && floats > 0 && units < (size_t)threads * 16 && room, slots, slots + shared};
}

// `own`: slots of split sequences that are not given away yet; moved on.
static AtWay at_way(const AttentionArgs& p, const AtShape& sh, const AtPlan& plan, const SeqRun* s, int threads,
                    float** own) {
  const int parts = at_parts(p, s), shared = at_shared(p, sh, s, threads);
  if (shared > 0) return {at_shared_slots(p, sh, s, plan.shared), shared, parts - shared};
  if (!plan.split || parts < 2) return {nullptr, 0, 1};
  const AtWay way = {*own, at_first_part(p, s), parts};
  *own += (size_t)s->count * p.q_heads * parts * sh.slot;
  return way;
}

// After the barrier: what lies in slots is merged, rows shared out over the team.
static void at_merge_slots(const AttentionArgs& p, const AtShape& sh, const AtOwn& w, const AtPlan& plan,
                           const Team& team) {
  float* own = plan.own;
  for (int i = 0; i < p.num_seqs; i++) {
    const SeqRun* s = p.seqs + i;
    const AtWay way = at_way(p, sh, plan, s, team.size, &own);
    if (!way.slots) continue;
    const int parts = at_parts(p, s);
    // Turn about: sequences of few rows would all begin with the first thread.
    const int64_t queries = (int64_t)s->count * p.q_heads;
    for (int64_t query = (team.rank + i) % team.size; query < queries; query += team.size) {
      const int row = (int)(query / p.q_heads), position = s->start + row;
      const int first = at_first_seen(p, position) / OCT_ATTN_PARTITION;
      for (int part = first; part <= position / OCT_ATTN_PARTITION; part++) {
        const float* slot = way.slots + ((size_t)query * parts + part - at_first_part(p, s)) * sh.slot;
        at_merge(w.merged_m, w.merged_l, w.merged_o, slot[0], slot[1], slot + 16, sh.dv, part == first);
      }
      at_write(p, s->row + row, (int)(query % p.q_heads), *w.merged_m, *w.merged_l, w.merged_o);
    }
  }
}

static void at_tiled(const AttentionArgs& p, const Team& team) {
#if OCTAVO_AMX
  tile_config();
#endif
  const AtShape sh = at_shape(p);
  const size_t floats = at_own_floats(sh);
  const AtOwn w = at_own(sh, (float*)p.scratch + floats * team.rank);
  const AtPlan plan = at_plan(p, sh, (float*)p.scratch + floats * team.size, team.size);
  team.reset_counter();
  int64_t next = team.take(), base = 0;
  at_shared_runs(p, sh, w, plan.shared, team, &next, &base);
  float* own = plan.own;
  for (int i = 0; i < p.num_seqs; i++) {
    const SeqRun* s = p.seqs + i;
    const AtWay way = at_way(p, sh, plan, s, team.size, &own);
    const int blocks = (s->count + sh.block - 1) / sh.block;
    const int64_t units = (int64_t)blocks * p.kv.kv_heads * way.parts;
    for (; next < base + units; next = team.take()) {
      // The last blocks of a chunk see the most positions: they are handed out first.
      const int64_t at = base + units - 1 - next;
      const int block = (int)(at / way.parts / p.kv.kv_heads), row = block * sh.block;
      AtUnit u;
      u.seq = s;
      u.row = row;
      u.count = s->count - row < sh.block ? s->count - row : sh.block;
      u.head = (int)(at / way.parts % p.kv.kv_heads);
      u.part = way.slots ? way.first + (int)(at % way.parts) : -1;
      u.tiles = at_tiles(p, u.count * sh.group);
      u.slots = way.slots;
      u.parts = at_parts(p, s);
      at_run(p, sh, u, w);
    }
    base += units;
  }
  if (!plan.split && p.num_shared == 0) return;
  team.barrier();
  at_merge_slots(p, sh, w, plan, team);
}
