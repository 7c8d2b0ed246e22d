// Attention as the three-step product (docs/numerics.md: naive). Included by attention.inl.

// Scores of one query row over the tiles [first, last] to s, positions from the first tile's start. Returns the
// maximum.
static float an_scores(const AttentionArgs& p, const AtShape& sh, const SeqRun* seq, int position, int kv_head,
                       const float* q, float* s) {
  const int first = at_first_seen(p, position) / 32, last = position / 32;
  F16 m = as_f(i_set((int32_t)0xff800000));
  for (int t = first; t <= last; t++) {
    float* x = s + (t - first) * 32;
    at_scores_rows<1>(p.kv.f32, 1, q, 32, sh.dq, at_tile(p.kv, seq, kv_head, t), 0, p.scale, x);
    at_mask(p, x, t * 32, position);
    m = f_max(m, f_max(f_load(x), f_load(x + 16)));
  }
  return f_hmax(m);
}

static void an_row(const AttentionArgs& p, const AtShape& sh, const SeqRun* seq, int row, int head, float* s) {
  const int position = seq->start + row, first = at_first_seen(p, position) / 32, last = position / 32;
  const int n = (last - first + 1) * 32;
  float* q = s + n;
  float* o = q + sh.dq;
  AtUnit u = {seq, row, 1, 0, -1, false, nullptr, 0};
  AtShape one = sh;
  one.group = 1;
  u.head = head;
  at_load_q(p, one, u, q, 32);
  const float m = an_scores(p, sh, seq, position, head / sh.group, q, s);
  F16 l = f_zero();
  for (int i = 0; i < n; i += 16) {
    const F16 x = v_exp(f_sub(f_load(s + i), f_set(m)));
    l = f_add(l, x);
    f_store(s + i, x);
  }
  float total = f_sum(l);
  if (p.sinks) total = total + s_exp(p.sinks[head] - m);
  for (int i = 0; i < n; i += 16) {
    const F16 x = f_div(f_load(s + i), f_set(total));
    f_store(s + i, p.kv.f32 ? x : bf16_round_finite(x));
  }
  for (int d = 0; d < sh.dv; d += 16) f_store_n(o + d, f_zero(), sh.dv - d);
  const float keep = 1.0f;
  for (int t = first; t <= last; t++) {
    const uint8_t* tile = at_tile(p.kv, seq, head / sh.group, t);
    at_values_rows<1>(p.kv.f32, 1, s + (t - first) * 32, &keep, tile + sh.k_bytes, 0, sh.dv, o);
  }
  const AttentionArgs plain = {p.q,     p.dst,    p.seqs,    p.num_seqs, p.q_heads, p.ld_q,    p.ld_dst,
                               p.scale, p.window, p.softcap, nullptr,    true,      p.scratch, p.kv};
  at_write(plain, seq->row + row, head, 0.0f, 1.0f, o);
}

static void an_naive(const AttentionArgs& p, const Team& team) {
  const AtShape sh = at_shape(p);
  int longest = 0;
  for (int i = 0; i < p.num_seqs; i++) {
    const int n = p.seqs[i].start + p.seqs[i].count;
    longest = longest > n ? longest : n;
  }
  const size_t own = (size_t)(longest + 31) / 32 * 32 + sh.dq + (sh.dv + 15) / 16 * 16;
  float* s = (float*)p.scratch + own * team.rank;
  team.reset_counter();
  int64_t next = team.take(), base = 0;
  for (int i = 0; i < p.num_seqs; i++) {
    const int64_t units = (int64_t)p.seqs[i].count * p.q_heads;
    for (; next < base + units; next = team.take())
      an_row(p, sh, p.seqs + i, (int)((next - base) / p.q_heads), (int)((next - base) % p.q_heads), s);
    base += units;
  }
}
