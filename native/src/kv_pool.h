// The pages of one KV group. Owns the memory; who may use which block is decided elsewhere (kvcache/).
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels.h"
#include "memory.h"

namespace octavo {

class KVPool {
 public:
  // Zeroed blocks. Throws std::invalid_argument for sizes that cannot be.
  KVPool(int num_blocks, int block_size, int layers, int kv_heads, int head_dim, bool f32);
  static int64_t tile_bytes(int head_dim, bool f32);

  // One layer's pages, as kernels take them.
  KVLayer layer(int index) const;
  // Canonical float32 [block_size, kv_heads, head_dim] of one block.
  void read(int layer, int block, float* key, float* value) const;
  void fill(float value);

  const int num_blocks, block_size, layers, kv_heads, head_dim;
  const bool f32;
  size_t bytes() const { return memory_.size(); }

 private:
  Mapping memory_;
};

}  // namespace octavo
