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
  // One block in its wire form: rows of [layer][key, value][head][position][dim], bf16 or float. Import also clears
  // what the form does not hold. Neither looks at who uses the block.
  int64_t wire_bytes() const { return 2 * (int64_t)layers * kv_heads * block_size * head_dim * (f32 ? 4 : 2); }
  void export_block(int block, uint8_t* wire) const;
  void import_block(int block, const uint8_t* wire);

  const int num_blocks, block_size, layers, kv_heads, head_dim;
  const bool f32;
  size_t bytes() const { return memory_.size(); }

 private:
  template <bool Export>
  void move(int block, uint8_t* wire) const;
  template <bool Export>
  void move_f32(float* tiles, float* key, float* value) const;
  template <bool Export>
  void move_bf16(uint8_t* tiles, uint16_t* key, uint16_t* value) const;

  Mapping memory_;
};

}  // namespace octavo
