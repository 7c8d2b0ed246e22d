// Rotation of q and k, and the store of k and v into the pages (kernels.h KVLayer gives the layout).
// Work is divided by (sequence, tile of 32 positions, KV head): a tile is never touched by two threads.

constexpr int kMaxHeadDim = 512;

// y = x rotated in pairs (i, i + rotary / 2); dimensions from `rotary` on are copied.
OCT_INLINE void rotate(const float* x, float* y, const float* cos, const float* sin, int rotary, int head_dim) {
  const int half = rotary / 2;
  for (int i = 0; i < half; i += 16) {
    const int n = half - i;
    const F16 a = f_load_n(x + i, n, 0.0f), b = f_load_n(x + half + i, n, 0.0f);
    const F16 c = f_load_n(cos + i, n, 0.0f), s = f_load_n(sin + i, n, 0.0f);
    f_store_n(y + i, f_fnma(b, s, f_mul(a, c)), n);
    f_store_n(y + half + i, f_fma(a, s, f_mul(b, c)), n);
  }
  for (int i = rotary; i < head_dim; i++) y[i] = x[i];
}

OCT_INLINE void store_bf16(uint8_t* tile, int p, const float* k, const float* v, int head_dim) {
  const int dk = (int)round_up(head_dim, 32);
  uint32_t* kp = (uint32_t*)tile + (p / 16) * (dk / 2) * 16 + p % 16;
  uint32_t pairs[kMaxHeadDim / 2];
  for (int d = 0; d < head_dim; d += 16) bf16_store((uint16_t*)pairs + d, f_load_n(k + d, head_dim - d, 0.0f));
  for (int i = 0; i < (head_dim + 1) / 2; i++) kp[i * 16] = pairs[i];
  int32_t* vp = (int32_t*)(tile + 64 * dk) + (p / 2) * 16;
  for (int d = 0; d < head_dim; d += 16, vp += 256) {
    const I16 bits = bf16_round_bits(f_load_n(v + d, head_dim - d, 0.0f)), old = i_load(vp);
    i_store(vp, p % 2 ? i_or(i_and(old, i_set(0xffff)), bits)
                      : i_or(i_and(old, i_set((int32_t)0xffff0000)), i_shr<16>(bits)));
  }
}

OCT_INLINE void store_f32(uint8_t* tile, int p, const float* k, const float* v, int head_dim) {
  float* kp = (float*)tile + (p / 16) * head_dim * 16 + p % 16;
  for (int d = 0; d < head_dim; d++) kp[d * 16] = k[d];
  __builtin_memcpy((float*)tile + (32 + p) * (int64_t)head_dim, v, (size_t)head_dim * 4);
}

// One row: the q heads that share KV head `h`, then k and v of h where `tile` is not null.
static void rope_row(const RopeStoreArgs& a, int64_t row, int position, int h, uint8_t* tile) {
  const KVLayer& kv = a.kv;
  const int hd = kv.head_dim, half = a.rotary / 2, share = a.q_heads / kv.kv_heads;
  const int dq = kv.f32 ? hd : (int)round_up(hd, 32);
  const float* x = a.qkv + row * a.ld_qkv;
  const float* cos = a.cos + (int64_t)position * half;
  const float* sin = a.sin + (int64_t)position * half;
  float t[kMaxHeadDim];
  uint8_t* q = row_at(a.dst_q, row, a.ld_q, kv.f32);
  for (int g = h * share; g < (h + 1) * share; g++) {
    rotate(x + (int64_t)g * hd, t, cos, sin, a.rotary, hd);
    for (int d = 0; d < dq; d += 16) {
      put_n(q, (int64_t)g * dq + d, f_load_n(t + d, hd - d, 0.0f), dq - d, kv.f32);
    }
  }
  if (!tile) return;
  rotate(x + (int64_t)(a.q_heads + h) * hd, t, cos, sin, a.rotary, hd);
  const float* v = x + (int64_t)(a.q_heads + kv.kv_heads + h) * hd;
  if (kv.f32) {
    store_f32(tile, position % 32, t, v, hd);
  } else {
    store_bf16(tile, position % 32, t, v, hd);
  }
}

// Rows whose positions lie in one tile, for one KV head.
static void rope_tile(const RopeStoreArgs& a, const SeqRun& s, int first, int last, int h) {
  const KVLayer& kv = a.kv;
  const int block = s.block_table[first / kv.block_size];
  uint8_t* tile = kv.base + block * kv.block_stride + h * kv.head_stride + first % kv.block_size / 32 * kv.tile_stride;
  for (int p = first; p < last; p++) {
    const bool stored = p >= s.store_from;
    if (stored && p % 32 == 0) __builtin_memset(tile, 0, (size_t)kv.tile_stride);
    rope_row(a, s.row + (p - s.start), p, h, stored ? tile : nullptr);
  }
}

static void k_rope_store(const RopeStoreArgs& a, const Team& team) {
  const int kv_heads = a.kv.kv_heads;
  int64_t rows = 0, begin, end, at = 0;
  for (int i = 0; i < a.num_seqs; i++) rows += a.seqs[i].count;
  team.range(rows * kv_heads, &begin, &end);
  for (int i = 0; i < a.num_seqs && at < end; i++) {
    const SeqRun& s = a.seqs[i];
    const int stop = s.start + s.count;
    for (int p = s.start; p < stop;) {
      const int edge = (p / 32 + 1) * 32, last = edge < stop ? edge : stop;
      for (int h = 0; h < kv_heads; h++, at += last - p) {
        if (at >= begin && at < end) rope_tile(a, s, p, last, h);
      }
      p = last;
    }
  }
}
