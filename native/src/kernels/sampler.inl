// Drawing a token from a row of logits (docs/numerics.md: sampling). Needs math.inl before it.
//
// A thread takes whole rows. `z` holds the processed logits, padded with -inf to whole chunks of 16, `e` their exp; a
// token that was cut has z = -inf and e = 0. Thresholds are found by bisection on the bits of -z, without sorting, and
// soon over the few chunks that still matter: leaving out zeros changes no sum.
#pragma once

#include "philox.inl"
#include "sampler_process.inl"

#define OCT_SAMPLE_CHUNKS 2048

struct SpActive {  // the chunks that may hold a token: all of them, or a list in ascending order
  int count;
  bool listed;
  int32_t list[OCT_SAMPLE_CHUNKS];
};

OCT_INLINE int sp_at(const SpActive& a, int c) { return (a.listed ? a.list[c] : c) * 16; }

OCT_INLINE float sp_value(int key) {  // keys 0, 1, 2, ... are the floats -0, then downwards
  const uint32_t u = (uint32_t)key | 0x80000000u;
  float f;
  __builtin_memcpy(&f, &u, 4);
  return f;
}

// How many z are at least t.
static int sp_count(const SpRow& w, const SpActive& a, float t) {
  int n = 0;
  for (int c = 0; c < a.count; c++) n += __builtin_popcount(m_bits(f_le(f_set(t), f_load(w.z + sp_at(a, c)))));
  return n;
}
// The 16-lane sum of e where z is at least t.
static float sp_mass(const SpRow& w, const SpActive& a, float t) {
  F16 s = f_zero();
  for (int c = 0; c < a.count; c++) {
    const int i = sp_at(a, c);
    s = f_add(s, f_select(f_le(f_set(t), f_load(w.z + i)), f_load(w.e + i), f_zero()));
  }
  return f_sum(s);
}

// Leaves only the chunks that hold a z of at least t, where a list has room for them.
static void sp_narrow(const SpRow& w, SpActive& a, float t) {
  int n = 0;
  for (int c = 0; c < a.count; c++) {
    const int i = sp_at(a, c);
    if (!m_bits(f_le(f_set(t), f_load(w.z + i)))) continue;
    if (n == OCT_SAMPLE_CHUNKS) return;  // nothing of `a` has been written yet: it was not listed
    a.list[n++] = i / 16;
  }
  a.listed = true;
  a.count = n;
}

// The greatest t such that tokens of z >= t are at least `k` (mass < 0) or weigh at least `mass`; -0 for 0.
static int sp_threshold(const SpRow& w, SpActive& a, int k, float mass) {
  const int last = 0x7f7fffff;
  int lo = 0, hi = 0x3f800000;  // -1, -2, -4, ...: the first that is enough
  for (;; hi += 0x00800000) {
    if (hi >= last) {
      hi = last;
      break;
    }
    if (mass < 0 ? sp_count(w, a, sp_value(hi)) >= k : sp_mass(w, a, sp_value(hi)) >= mass) break;
    lo = hi + 1;
  }
  sp_narrow(w, a, sp_value(hi));
  while (lo < hi) {
    const int mid = lo + (hi - lo) / 2;
    if (mass < 0 ? sp_count(w, a, sp_value(mid)) >= k : sp_mass(w, a, sp_value(mid)) >= mass)
      hi = mid;
    else
      lo = mid + 1;
  }
  return lo;
}

// Cuts what is below t, and of the tokens at t all but the `keep` of lowest id.
static void sp_drop(const SpRow& w, const SpActive& a, float t, int keep) {
  for (int c = 0; c < a.count; c++) {
    const int i = sp_at(a, c);
    const F16 z = f_load(w.z + i);
    const M16 out = f_lt(z, f_set(t));
    f_store(w.z + i, f_select(out, sp_none(), z));
    f_store(w.e + i, f_select(out, f_zero(), f_load(w.e + i)));
    for (unsigned ties = m_bits(f_eq(z, f_set(t))); ties; ties &= ties - 1) {
      if (keep-- > 0) continue;
      const int at = i + __builtin_ctz(ties);
      w.z[at] = -__builtin_inff();
      w.e[at] = 0.0f;
    }
  }
}

static void sp_top_k(const SpRow& w, SpActive& a, int k) {
  if (sp_count(w, a, sp_value(0x7f7fffff)) <= k) return;
  const int key = sp_threshold(w, a, k, -1.0f);
  sp_drop(w, a, sp_value(key), k - (key > 0 ? sp_count(w, a, sp_value(key - 1)) : 0));
}

static void sp_top_p(const SpRow& w, SpActive& a, float p) {
  const float goal = p * sp_mass(w, a, sp_value(0x7f7fffff));
  const int key = sp_threshold(w, a, 0, goal > 0.0f ? goal : 0.0f);
  const float above = key > 0 ? sp_mass(w, a, sp_value(key - 1)) : 0.0f, each = s_exp(sp_value(key));
  const int ties = sp_count(w, a, sp_value(key)) - (key > 0 ? sp_count(w, a, sp_value(key - 1)) : 0);
  int keep = 1;
  for (float sum = above + each; sum < goal && keep < ties; keep++) sum = sum + each;
  sp_drop(w, a, sp_value(key), keep);
}

static void sp_min_p(const SpRow& w, const SpActive& a, float min_p) {
  for (int c = 0; c < a.count; c++) {
    const int i = sp_at(a, c);
    const F16 e = f_load(w.e + i);
    const M16 out = f_lt(e, f_set(min_p));
    f_store(w.z + i, f_select(out, sp_none(), f_load(w.z + i)));
    f_store(w.e + i, f_select(out, f_zero(), e));
  }
}

struct SpDraw {
  float best, bound;  // bound: 1.001 exp(-best)
  int id;
  int pending;
  int32_t chunk[4];
};

// Scores the waiting chunks. A token can win only if E <= exp(z - best), and E >= f but for rounding: so logarithms
// are taken only where f <= e bound, and `bound` leaves a margin for all rounding on the way.
static void sp_score(const SpRow& w, SpDraw& d) {
  int32_t words[64];
  float score[16];
  for (int j = d.pending; j < 4; j++) d.chunk[j] = 0;
  philox_chunks(w.p, d.chunk, words);
  for (int j = 0; j < d.pending; j++) {
    const int at = 16 * d.chunk[j];
    const F16 f = noise_fraction(i_load(words + 16 * j));
    if (!m_bits(f_le(f, f_mul(f_load(w.e + at), f_set(d.bound))))) continue;
    f_store(score, f_sub(f_load(w.z + at), noise_log(f)));
    for (int i = 0; i < 16; i++) {
      if (!(score[i] > d.best || (score[i] == d.best && at + i < d.id))) continue;
      d.best = score[i];
      d.id = at + i;
    }
    d.bound = s_exp(0.0f - d.best) * 1.001f;
  }
  d.pending = 0;
}

// The greatest z - log E, ties to the lowest id. f is at least 2^-33, so a chunk where no e bound comes near that
// needs no noise at all.
static int sp_draw(const SpRow& w, const SpActive& a, int top) {
  SpDraw d = {-__builtin_inff(), __builtin_inff(), 0x7fffffff, 1, {top / 16, 0, 0, 0}};
  sp_score(w, d);  // the likeliest token's chunk first: a good bound at once
  for (int c = 0; c < a.count; c++) {
    const int i = sp_at(a, c);
    if (i / 16 == top / 16 || !m_bits(f_le(f_set(1.1e-10f), f_mul(f_load(w.e + i), f_set(d.bound))))) continue;
    d.chunk[d.pending++] = i / 16;
    if (d.pending == 4) sp_score(w, d);
  }
  if (d.pending) sp_score(w, d);
  return d.id;
}

static int sp_sample(const SpRow& w) {
  const SampleRow& p = *w.p;
  const SpBest raw = sp_best(w.logits, w.vocab);
  if (raw.id < 0) return -1;
  const bool changed = sp_changes(p);
  if (changed) sp_process(w);
  const SpBest top = changed ? sp_best(w.z, w.vocab) : raw;
  if (!(top.value > -__builtin_inff() && top.value < __builtin_inff())) return -1;
  if (p.temperature < 1e-5f || p.top_k == 1) return top.id;
  const float* src = changed ? w.z : w.logits;
  for (int i = 0; i < w.padded; i += 16) {
    const F16 x = f_load_n(src + i, w.vocab - i, -__builtin_inff());
    const F16 z = f_div(f_sub(x, f_set(top.value)), f_set(p.temperature));
    f_store(w.z + i, z);
    f_store(w.e + i, v_exp(z));
  }
  SpActive active;
  active.count = w.padded / 16;
  active.listed = false;
  if (p.top_k > 0 && p.top_k < w.vocab) sp_top_k(w, active, p.top_k);
  if (p.top_p < 1.0f) sp_top_p(w, active, p.top_p);
  if (p.min_p > 0.0f) sp_min_p(w, active, p.min_p);
  return sp_draw(w, active, top.id);
}

// The token that is given, where the row has a distribution at all.
static int sp_given(const SpRow& w) {
  const SpBest raw = sp_best(w.logits, w.vocab);
  return raw.id >= 0 && raw.value > -__builtin_inff() && raw.value < __builtin_inff() ? w.p->given : -1;
}

static void k_sample(const SampleArgs& a, const Team& team) {
  SpRow w;
  w.vocab = a.vocab;
  w.padded = (a.vocab + 15) / 16 * 16;
  w.z = a.scratch + (size_t)team.rank * 2 * w.padded;
  w.e = w.z + w.padded;
  team.reset_counter();
  for (int64_t row = team.take(); row < a.rows; row = team.take()) {
    w.p = a.params + row;
    w.logits = a.logits + (size_t)row * a.ld;
    SampleOut* out = a.out + row;
    out->token = w.p->given >= 0 ? sp_given(w) : sp_sample(w);
    out->logprob = 0.0f;
    out->rank = w.p->given >= 0 && out->token >= 0 ? sp_rank(w, out->token) : 0;
    if (out->token >= 0 && w.p->num_logprobs >= 0) sp_logprobs(w, out);
  }
}
