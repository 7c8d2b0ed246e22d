// Drawing a token from a row of logits (docs/numerics.md: sampling). Needs math.inl before it.
//
// A thread takes whole rows. `z` holds the processed logits, padded with -inf to whole vectors, `e` their exp; a token
// that was cut has z = -inf and e = 0. Thresholds are found by bisection on the bits of -z: no sorting.
#pragma once

#include "philox.inl"

struct SpRow {
  const SampleRow* p;
  const float* logits;
  int vocab, padded;
  float *z, *e;
};

struct SpBest {
  float value;  // greatest value, NaN where any value is NaN
  int id;       // lowest id that has it
};

OCT_INLINE F16 sp_none() { return as_f(i_set((int32_t)0xff800000)); }

static SpBest sp_best(const float* x, int n) {
  F16 m = sp_none();
  for (int i = 0; i < n; i += 16) {
    const F16 v = f_load_n(x + i, n - i, -__builtin_inff());
    if (m_bits(f_isnan(v))) return {__builtin_nanf(""), -1};
    m = f_max(v, m);
  }
  const float best = f_hmax(m);
  for (int i = 0; i < n; i += 16) {
    const unsigned bits = m_bits(f_eq(f_load_n(x + i, n - i, -__builtin_inff()), f_set(best)));
    if (bits) return {best, i + __builtin_ctz(bits)};
  }
  return {best, -1};
}

static void sp_penalise(const SpRow& w) {
  const SampleRow& p = *w.p;
  const bool repeat = p.repetition != 1.0f && (p.prompt_counts || p.output_counts);
  const bool output = p.output_counts && (p.frequency != 0.0f || p.presence != 0.0f);
  if (!repeat && !output) return;
  for (int i = 0; i < w.vocab; i++) {
    const int said = p.output_counts ? p.output_counts[i] : 0;
    if (said == 0 && !(p.prompt_counts && p.prompt_counts[i] > 0)) continue;
    float x = w.z[i];
    if (repeat) x = x > 0.0f ? x / p.repetition : x * p.repetition;
    if (output && said > 0) {
      const float weighted = p.frequency * (float)said;
      x = x - weighted;
      x = x - p.presence;
    }
    w.z[i] = x;
  }
}

// Penalties, bias, grammar mask and banned ids, from the logits to z.
static void sp_process(const SpRow& w) {
  const SampleRow& p = *w.p;
  for (int i = 0; i < w.padded; i += 16) f_store(w.z + i, f_load_n(w.logits + i, w.vocab - i, -__builtin_inff()));
  sp_penalise(w);
  for (int i = 0; i < p.num_bias; i++)
    if (p.bias_ids[i] >= 0 && p.bias_ids[i] < w.vocab) w.z[p.bias_ids[i]] += p.bias_values[i];
  if (p.mask)
    for (int i = 0; i < w.vocab; i++)
      if (!(p.mask[i >> 5] >> (i & 31) & 1)) w.z[i] = -__builtin_inff();
  for (int i = 0; i < p.num_banned; i++)
    if (p.banned[i] >= 0 && p.banned[i] < w.vocab) w.z[p.banned[i]] = -__builtin_inff();
}

// How many z are at least t.
static int sp_count(const SpRow& w, float t) {
  int n = 0;
  for (int i = 0; i < w.padded; i += 16) n += __builtin_popcount(m_bits(f_le(f_set(t), f_load(w.z + i))));
  return n;
}
// The 16-lane sum of e where z is at least t.
static float sp_mass(const SpRow& w, float t) {
  F16 s = f_zero();
  for (int i = 0; i < w.padded; i += 16)
    s = f_add(s, f_select(f_le(f_set(t), f_load(w.z + i)), f_load(w.e + i), f_zero()));
  return f_sum(s);
}

OCT_INLINE float sp_value(int key) {  // keys 0, 1, 2, ... are the floats -0, then downwards
  const uint32_t u = (uint32_t)key | 0x80000000u;
  float f;
  __builtin_memcpy(&f, &u, 4);
  return f;
}

// Cuts what is below t, and of the tokens at t all but the `keep` of lowest id.
static void sp_drop(const SpRow& w, float t, int keep) {
  for (int i = 0; i < w.padded; i += 16) {
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

static void sp_top_k(const SpRow& w, int k) {
  int lo = 0, hi = 0x7f7fffff;
  if (sp_count(w, sp_value(hi)) <= k) return;
  while (lo < hi) {
    const int mid = lo + (hi - lo) / 2;
    if (sp_count(w, sp_value(mid)) >= k)
      hi = mid;
    else
      lo = mid + 1;
  }
  sp_drop(w, sp_value(lo), k - (lo > 0 ? sp_count(w, sp_value(lo - 1)) : 0));
}

static void sp_top_p(const SpRow& w, float p) {
  int lo = 0, hi = 0x7f7fffff;
  const float goal = p * sp_mass(w, sp_value(hi));
  while (lo < hi) {
    const int mid = lo + (hi - lo) / 2;
    if (sp_mass(w, sp_value(mid)) >= goal)
      hi = mid;
    else
      lo = mid + 1;
  }
  const float above = lo > 0 ? sp_mass(w, sp_value(lo - 1)) : 0.0f, each = s_exp(sp_value(lo));
  const int ties = sp_count(w, sp_value(lo)) - (lo > 0 ? sp_count(w, sp_value(lo - 1)) : 0);
  int keep = 1;
  for (float sum = above + each; sum < goal && keep < ties; keep++) sum = sum + each;
  sp_drop(w, sp_value(lo), keep);
}

static void sp_min_p(const SpRow& w, float min_p) {
  for (int i = 0; i < w.padded; i += 16)
    f_store(w.z + i, f_select(f_lt(f_load(w.e + i), f_set(min_p)), sp_none(), f_load(w.z + i)));
}

// The greatest z - log E. A token can win only if E < exp(z - best), and E > f: so the logarithms are taken only where
// f <= e exp(-best), with a margin for all rounding on the way.
static int sp_draw(const SpRow& w, int top) {
  int32_t words[64];
  float score[16], best = -__builtin_inff(), bound = __builtin_inff();
  int id = top;
  const int blocks = (w.padded + 63) / 64;
  for (int step = -1; step < blocks; step++) {  // the block of the likeliest token first: a good bound at once
    const int b = step < 0 ? top / 64 : step;
    if (step == top / 64) continue;
    unsigned alive = 0;
    for (int i = 64 * b; i < 64 * b + 64 && i < w.padded; i += 16)
      alive |= m_bits(f_lt(f_set(-26.0f), f_load(w.z + i))) ? 1u << (i / 16 % 4) : 0u;
    if (!alive) continue;
    philox_tokens(w.p, b, words);
    for (int v = 0; v < 4; v++) {
      if (!(alive >> v & 1)) continue;
      const int at = 64 * b + 16 * v;
      const F16 f = noise_fraction(i_load(words + 16 * v)), z = f_load(w.z + at);
      if (!m_bits(f_le(f, f_mul(f_load(w.e + at), f_set(bound))))) continue;
      f_store(score, f_sub(z, noise_log(f)));
      for (int j = 0; j < 16; j++) {
        if (score[j] < best || (score[j] == best && at + j > id) || !(w.z[at + j] > -26.0f)) continue;
        best = score[j];
        id = at + j;
      }
      bound = s_exp(0.0f - best) * 1.001f;
    }
  }
  return id;
}

static int sp_sample(const SpRow& w) {
  const SampleRow& p = *w.p;
  sp_process(w);
  const SpBest top = sp_best(w.z, w.vocab);
  if (!(top.value > -__builtin_inff() && top.value < __builtin_inff())) return -1;
  if (p.temperature < 1e-5f || p.top_k == 1) return top.id;
  for (int i = 0; i < w.padded; i += 16) {
    const F16 z = f_div(f_sub(f_load(w.z + i), f_set(top.value)), f_set(p.temperature));
    f_store(w.z + i, z);
    f_store(w.e + i, v_exp(z));
  }
  if (p.top_k > 0 && p.top_k < w.vocab) sp_top_k(w, p.top_k);
  if (p.top_p < 1.0f) sp_top_p(w, p.top_p);
  if (p.min_p > 0.0f) sp_min_p(w, p.min_p);
  return sp_draw(w, top.id);
}

// The n greatest logits, ties to the lowest id.
static void sp_top_n(const float* x, int vocab, int n, int32_t* ids, float* values) {
  int have = 0;
  for (int i = 0; i < vocab; i += 16) {
    const F16 v = f_load_n(x + i, vocab - i, -__builtin_inff());
    const float least = have < n ? -__builtin_inff() : values[n - 1];
    unsigned bits = have < n ? 0xffffu : m_bits(f_lt(f_set(least), v));
    for (; bits; bits &= bits - 1) {
      const int at = i + __builtin_ctz(bits);
      if (at >= vocab || (have == n && !(x[at] > values[n - 1]))) continue;
      int j = have < n ? have++ : n - 1;
      for (; j > 0 && values[j - 1] < x[at]; j--) {
        values[j] = values[j - 1];
        ids[j] = ids[j - 1];
      }
      values[j] = x[at];
      ids[j] = at;
    }
  }
}

// Log-probabilities of the logits as they came: (x - max) - log(sum exp(x - max)).
static void sp_logprobs(const SpRow& w, SampleOut* out) {
  const int n = w.p->num_logprobs < kMaxLogprobs ? w.p->num_logprobs : kMaxLogprobs;
  const float best = sp_best(w.logits, w.vocab).value;
  F16 s = f_zero();
  for (int i = 0; i < w.vocab; i += 16)
    s = f_add(s, v_exp(f_sub(f_load_n(w.logits + i, w.vocab - i, -__builtin_inff()), f_set(best))));
  const float log_sum = s_log(f_sum(s));
  out->logprob = (w.logits[out->token] - best) - log_sum;
  for (int i = 0; i < n; i++) out->top_ids[i] = -1;
  if (n > 0) sp_top_n(w.logits, w.vocab, n, out->top_ids, out->top_logprobs);  // it reads the worst of n so far
  for (int i = 0; i < n; i++) out->top_logprobs[i] = (out->top_logprobs[i] - best) - log_sum;
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
    out->token = sp_best(w.logits, w.vocab).id < 0 ? -1 : sp_sample(w);
    out->logprob = 0.0f;
    if (out->token >= 0 && w.p->num_logprobs >= 0) sp_logprobs(w, out);
  }
}
