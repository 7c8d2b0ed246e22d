// embed: rows of the packed embedding, the values as a product reads them.

template <bool kRound>
static void embed_row(const PackedWeight& weight, int32_t id, float* dst) {
  alignas(64) float w[kTileFloats];
  const uint8_t* block = block_data(weight, id / 16);
  for (int t = 0; 32 * t < weight.k; t++) {
    expand_tile<kRound>(weight, block, t, w);
    const int count = weight.k - 32 * t < 32 ? weight.k - 32 * t : 32;
    for (int i = 0; i < count; i++) dst[32 * t + i] = w[16 * i + id % 16];
  }
}

static void k_embed(const EmbedArgs& a, const Team& team) {
  int64_t begin, end;
  team.range(a.rows, &begin, &end);
  for (int64_t r = begin; r < end; r++) {
    float* dst = a.dst + r * a.ld;
    if (a.f32)
      embed_row<false>(*a.weight, a.ids[r], dst);
    else
      embed_row<true>(*a.weight, a.ids[r], dst);
    if (a.scale == 1.0f) continue;
    for (int c = 0; c < a.weight->k; c++) dst[c] *= a.scale;
  }
}
