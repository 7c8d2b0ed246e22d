OCT_INLINE float kv_at(const KVLayer& kv, const SeqRun& s, int p, int h, int d, bool v) {
  const int hd = kv.head_dim, dk = (hd + 31) / 32 * 32, i = p % 32;
  const uint8_t* t = kv.base + s.block_table[p / kv.block_size] * kv.block_stride + h * kv.head_stride +
                     p % kv.block_size / 32 * kv.tile_stride;
  if (kv.f32) return v ? ((const float*)t)[(32 + i) * hd + d] : ((const float*)t)[((i / 16) * hd + d) * 16 + i % 16];
  if (v) return bf16_to_float(((const uint16_t*)(t + 64 * dk))[((d / 16 * 16 + i / 2) * 16 + d % 16) * 2 + i % 2]);
  return bf16_to_float(((const uint16_t*)t)[(((i / 16) * (dk / 2) + d / 2) * 16 + i % 16) * 2 + d % 2]);
}
static void k_attention(const AttentionArgs& a, const Team& team) {
  const KVLayer& kv = a.kv;
  const int hd = kv.head_dim, dq = kv.f32 ? hd : (hd + 31) / 32 * 32;
  int64_t begin, end;
  team.range(a.q_heads, &begin, &end);
  for (int i = 0; i < a.num_seqs; i++)
    for (int r = 0; r < a.seqs[i].count; r++)
      for (int64_t g = begin; g < end; g++) {
        const SeqRun& s = a.seqs[i];
        const int h = (int)g / (a.q_heads / kv.kv_heads), last = s.start + r;
        float m = -1e30f, l = 0, o[kMaxHeadDim] = {};
        for (int p = 0; p <= last; p++) {
          float x = 0;
          for (int d = 0; d < hd; d++) {
            const int64_t at = (int64_t)(s.row + r) * a.ld_q + g * dq + d;
            const float q = kv.f32 ? ((const float*)a.q)[at] : bf16_to_float(((const uint16_t*)a.q)[at]);
            x = __builtin_fmaf(q, kv_at(kv, s, p, h, d, false), x);
          }
          x *= a.scale;
          const float m2 = m > x ? m : x, f = s_exp(m - m2), e = s_exp(x - m2);
          l = l * f + e;
          for (int d = 0; d < hd; d++) o[d] = o[d] * f + e * kv_at(kv, s, p, h, d, true);
          m = m2;
        }
        for (int d = 0; d < hd; d++) {
          const int64_t at = (int64_t)(s.row + r) * a.ld_dst + g * hd + d;
          if (kv.f32) ((float*)a.dst)[at] = o[d] / l;
          else ((uint16_t*)a.dst)[at] = bf16_from_float(o[d] / l);
        }
      }
}
