static void k_sample(const SampleArgs& a, const Team& team) {
  int64_t begin, end;
  team.range(a.rows, &begin, &end);
  for (int64_t r = begin; r < end; r++) {
    const float* x = a.logits + r * a.ld;
    int best = 0;
    for (int i = 1; i < a.vocab; i++)
      if (x[i] > x[best]) best = i;
    a.out[r].token = best;
    a.out[r].logprob = 0;
  }
}
