// How much scratch the attention kernels use.
#include "attention_layout.h"
#include "kernels.h"

namespace octavo {

size_t attention_scratch_bytes(int threads, int max_positions, int q_heads, int head_dim, int max_rows, bool naive) {
  (void)max_rows;
  const size_t tile = OCT_ATTN_TILE;
  if (naive) return (size_t)threads * ((size_t)max_positions + 4 * tile + (size_t)head_dim) * sizeof(float) + 4096;
  const size_t rows = (size_t)(q_heads > OCT_ATTN_ROWS ? q_heads : OCT_ATTN_ROWS) + 32;
  const size_t dims = ((size_t)head_dim + tile - 1) / tile * tile;
  const size_t own = tile * dims * sizeof(float) + rows * (3 * dims + tile + 16 + 4 + 16) * sizeof(float) + 4096;
  return (size_t)threads * (own + OCT_ATTN_SPLIT_BYTES);
}

}  // namespace octavo
