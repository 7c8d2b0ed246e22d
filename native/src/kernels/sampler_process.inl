// What the sampler does around the draw: penalties, bias and masks before it, log-probabilities after it.
// Included by sampler.inl.
#pragma once

struct SpRow {
  const SampleRow* p;
  const float* logits;
  int vocab, padded;
  float *z, *e;
};

struct SpBest {
  float value;  // the greatest value
  int id;       // the lowest id that has it; -1 where any value is NaN
};

OCT_INLINE F16 sp_none() { return as_f(i_set((int32_t)0xff800000)); }

static SpBest sp_best(const float* x, int n) {
  F16 m = sp_none();
  for (int i = 0; i < n; i += 16) {
    const F16 v = f_load_n(x + i, n - i, -__builtin_inff());
    if (m_bits(f_isnan(v))) return {0.0f, -1};
    m = f_max(v, m);
  }
  const float best = f_hmax(m);
  for (int i = 0; i < n; i += 16) {
    const unsigned bits = m_bits(f_eq(f_load_n(x + i, n - i, -__builtin_inff()), f_set(best)));
    if (bits) return {best, i + __builtin_ctz(bits)};
  }
  return {best, -1};
}

OCT_INLINE bool sp_repeats(const SampleRow& p) { return p.repetition != 1.0f && (p.prompt_counts || p.output_counts); }
OCT_INLINE bool sp_counts(const SampleRow& p) { return p.output_counts && (p.frequency != 0.0f || p.presence != 0.0f); }
OCT_INLINE bool sp_changes(const SampleRow& p) {
  return sp_repeats(p) || sp_counts(p) || p.num_bias > 0 || p.num_banned > 0 || p.mask;
}

static void sp_penalise_one(const SpRow& w, int i) {
  const SampleRow& p = *w.p;
  const int said = p.output_counts ? p.output_counts[i] : 0;
  if (said == 0 && !(p.prompt_counts && p.prompt_counts[i] > 0)) return;
  float x = w.z[i];
  if (sp_repeats(p)) x = x > 0.0f ? x / p.repetition : x * p.repetition;
  if (said > 0 && sp_counts(p)) {
    const float weighted = p.frequency * (float)said;
    x = x - weighted;
    x = x - p.presence;
  }
  w.z[i] = x;
}

static void sp_penalise(const SpRow& w) {
  const SampleRow& p = *w.p;
  for (int i = 0; i < w.vocab; i += 16) {
    unsigned bits = 0xffffu;
    if (i + 16 <= w.vocab) {
      I16 any = i_set(0);
      if (p.prompt_counts) any = i_or(any, i_load(p.prompt_counts + i));
      if (p.output_counts) any = i_or(any, i_load(p.output_counts + i));
      bits = ~m_bits(i_eq(any, i_set(0))) & 0xffffu;
    }
    for (; bits; bits &= bits - 1)
      if (i + __builtin_ctz(bits) < w.vocab) sp_penalise_one(w, i + __builtin_ctz(bits));
  }
}

// Penalties, bias, grammar mask and banned ids, from the logits to z.
static void sp_process(const SpRow& w) {
  const SampleRow& p = *w.p;
  for (int i = 0; i < w.padded; i += 16) f_store(w.z + i, f_load_n(w.logits + i, w.vocab - i, -__builtin_inff()));
  if (sp_repeats(p) || sp_counts(p)) sp_penalise(w);
  for (int i = 0; i < p.num_bias; i++)
    if (p.bias_ids[i] >= 0 && p.bias_ids[i] < w.vocab) w.z[p.bias_ids[i]] += p.bias_values[i];
  for (int i = 0; p.mask && i < w.vocab; i += 32)
    for (uint32_t out = ~p.mask[i / 32]; out; out &= out - 1)
      if (i + __builtin_ctz(out) < w.vocab) w.z[i + __builtin_ctz(out)] = -__builtin_inff();
  for (int i = 0; i < p.num_banned; i++)
    if (p.banned[i] >= 0 && p.banned[i] < w.vocab) w.z[p.banned[i]] = -__builtin_inff();
}

// The n greatest logits, ties to the lowest id.
static void sp_top_n(const float* x, int vocab, int n, int32_t* ids, float* values) {
  int have = 0;
  for (int i = 0; n > 0 && i < vocab; i += 16) {
    const F16 v = f_load_n(x + i, vocab - i, -__builtin_inff());
    unsigned bits = have < n ? 0xffffu : m_bits(f_lt(f_set(values[n - 1]), v));
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

// 1 + how many tokens come before this one in the order of logits, ties by lowest id.
static int sp_rank(const SpRow& w, int token) {
  const F16 x = f_set(w.logits[token]);
  int before = 0;
  for (int i = 0; i < w.vocab; i += 16) {
    const F16 v = f_load_n(w.logits + i, w.vocab - i, -__builtin_inff());
    unsigned bits = m_bits(f_lt(x, v));
    if (i < token) bits |= m_bits(f_eq(v, x)) & (token - i < 16 ? (1u << (token - i)) - 1 : 0xffffu);
    before += __builtin_popcount(bits);
  }
  return before + 1;
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
  for (int i = 0; i < n; i++) {
    out->top_ids[i] = -1;
    out->top_logprobs[i] = -__builtin_inff();
  }
  sp_top_n(w.logits, w.vocab, n, out->top_ids, out->top_logprobs);
  for (int i = 0; i < n; i++) out->top_logprobs[i] = (out->top_logprobs[i] - best) - log_sum;
}
