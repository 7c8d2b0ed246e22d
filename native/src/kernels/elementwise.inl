// The ops beside the products: normalisation, activation, row copies, rotation and the store into pages.
// Included by each per-ISA file after vec_*.h and math.inl; the bits are fixed by docs/numerics.md.

OCT_INLINE int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// Writes n values at element `at` of a row that is float or bfloat16.
OCT_INLINE void put_n(void* row, int64_t at, F16 x, int n, bool f32) {
  if (f32) {
    f_store_n((float*)row + at, x, n);
  } else {
    bf16_store_n((uint16_t*)row + at, x, n);
  }
}
OCT_INLINE uint8_t* row_at(void* base, int64_t row, int64_t ld, bool f32) {
  return (uint8_t*)base + row * ld * (f32 ? 4 : 2);
}
// Products read a row in whole blocks of 32 inputs: what lies beyond the columns must be zero.
OCT_INLINE void clear_padding(void* row, int64_t cols, int64_t ld, bool f32) {
  const int64_t padded = round_up(cols, 32), end = padded < ld ? padded : ld;
  const int64_t size = f32 ? 4 : 2;
  if (end > cols) __builtin_memset((uint8_t*)row + cols * size, 0, (size_t)((end - cols) * size));
}

// 1 / sqrt(mean of n squares + eps) in every lane.
OCT_INLINE F16 inverse_rms(const float* x, int n, float eps) {
  F16 lanes = f_zero();
  for (int c = 0; c < n; c += 16) {
    const F16 v = f_load_n(x + c, n - c, 0.0f);
    lanes = f_fma(v, v, lanes);
  }
  const float mean = f_sum(lanes) / (float)n + eps;
  return f_set(1.0f / __builtin_sqrtf(mean));
}
OCT_INLINE F16 normed(const float* x, const float* weight, int n, F16 inverse) {
  return f_mul(f_mul(f_load_n(x, n, 0.0f), inverse), f_load_n(weight, n, 0.0f));
}

static void k_rms_norm(const NormArgs& a, const Team& team) {
  int64_t begin, end;
  team.range(a.rows, &begin, &end);
  for (int64_t r = begin; r < end; r++) {
    const float* x = a.src + r * a.ld_src;
    uint8_t* y = row_at(a.dst, r, a.ld_dst, a.dst_f32);
    const F16 inverse = inverse_rms(x, a.cols, a.eps);
    if (a.residual) {
      const float* residual = a.residual + r * a.ld_dst;
      for (int c = 0; c < a.cols; c += 16) {
        const int n = a.cols - c;
        const F16 v = normed(x + c, a.weight + c, n, inverse);
        f_store_n((float*)y + c, f_add(f_load_n(residual + c, n, 0.0f), v), n);
      }
      continue;
    }
    for (int c = 0; c < a.cols; c += 16) {
      const int n = a.cols - c;
      put_n(y, c, normed(x + c, a.weight + c, n, inverse), n, a.dst_f32);
    }
    clear_padding(y, a.cols, a.ld_dst, a.dst_f32);
  }
}

static void k_qk_norm(const QkNormArgs& a, const Team& team) {
  const int64_t parts = a.q_parts + a.k_parts;
  int64_t begin, end;
  team.range(a.rows * parts, &begin, &end);
  for (int64_t unit = begin; unit < end; unit++) {
    const int part = (int)(unit % parts), k_part = part - a.q_parts;
    const bool q = k_part < 0;
    const int cols = q ? a.q_cols : a.k_cols;
    const float* weight = q ? a.q_weight : a.k_weight;
    float* x = a.qkv + unit / parts * a.ld + (q ? part * a.q_cols : a.q_parts * a.q_cols + k_part * a.k_cols);
    const F16 inverse = inverse_rms(x, cols, a.eps);
    for (int c = 0; c < cols; c += 16) f_store_n(x + c, normed(x + c, weight + c, cols - c, inverse), cols - c);
  }
}

static void k_cast(const CastArgs& a, const Team& team) {
  int64_t begin, end;
  team.range(a.rows, &begin, &end);
  for (int64_t r = begin; r < end; r++) {
    const float* x = a.src + r * a.ld_src;
    uint8_t* y = row_at(a.dst, r, a.ld_dst, a.dst_f32);
    for (int c = 0; c < a.cols; c += 16) put_n(y, c, f_load_n(x + c, a.cols - c, 0.0f), a.cols - c, a.dst_f32);
    clear_padding(y, a.cols, a.ld_dst, a.dst_f32);
  }
}

static void k_softcap(const SoftcapArgs& a, const Team& team) {
  const int kBlock = 1024;  // columns a unit of work
  const int64_t blocks = (a.cols + kBlock - 1) / kBlock;
  int64_t begin, end;
  team.range(a.rows * blocks, &begin, &end);
  for (int64_t unit = begin; unit < end; unit++) {
    const int first = (int)(unit % blocks) * kBlock, left = a.cols - first, n = left < kBlock ? left : kBlock;
    float* x = a.x + unit / blocks * a.ld + first;
    for (int c = 0; c < n; c += 16) f_store_n(x + c, v_softcap(f_load_n(x + c, n - c, 0.0f), a.cap), n - c);
  }
}

// g / (1 + exp(-g)), or the tanh form of gelu, which is g / (1 + exp(-2 z)) with z its tanh's argument.
OCT_INLINE F16 gate(F16 g, int32_t act) {
  F16 z = g;
  if (act == 1) {
    const F16 cube = f_mul(f_mul(g, g), g);
    z = f_mul(f_set(1.59576912f), f_fma(f_set(0.044715f), cube, g));
  }
  return f_div(g, f_add(f_set(1.0f), v_exp(f_sub(f_zero(), z))));
}

static void k_activate(const ActArgs& a, const Team& team) {
  const int kBlock = 256;  // columns a unit of work, so that one row feeds several threads
  const int64_t blocks = (a.cols + kBlock - 1) / kBlock;
  int64_t begin, end;
  team.range(a.rows * blocks, &begin, &end);
  for (int64_t unit = begin; unit < end; unit++) {
    const int64_t r = unit / blocks;
    const int first = (int)(unit % blocks) * kBlock;
    const int last = first + kBlock < a.cols ? first + kBlock : a.cols;
    const float* g = a.src + r * a.ld_src;
    uint8_t* y = row_at(a.dst, r, a.ld_dst, a.dst_f32);
    for (int c = first; c < last; c += 16) {
      const int n = last - c;
      const F16 v = gate(f_load_n(g + c, n, 0.0f), a.act);
      put_n(y, c, f_mul(v, f_load_n(g + a.cols + c, n, 0.0f)), n, a.dst_f32);
    }
    if (last == a.cols) clear_padding(y, a.cols, a.ld_dst, a.dst_f32);
  }
}

static void k_gather(const GatherArgs& a, const Team& team) {
  int64_t begin, end;
  team.range(a.rows, &begin, &end);
  for (int64_t r = begin; r < end; r++) {
    __builtin_memcpy(a.dst + r * a.ld_dst, a.src + (int64_t)a.index[r] * a.ld_src, (size_t)a.cols * 4);
  }
}
