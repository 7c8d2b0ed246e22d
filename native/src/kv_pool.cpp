#include "kv_pool.h"

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

namespace octavo {
namespace {

int64_t up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

float widen(uint16_t h) {
  const uint32_t u = (uint32_t)h << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}

// The value of one element of a tile; `p` is the position within it.
float element(const KVLayer& kv, const uint8_t* tile, bool value, int p, int d) {
  const int64_t hd = kv.head_dim, half = p / 16, j = p % 16;
  if (kv.f32) {
    const float* t = (const float*)tile;
    return value ? t[(32 + p) * hd + d] : t[(half * hd + d) * 16 + j];
  }
  const int64_t dk = up(hd, 32);
  const uint16_t* k = (const uint16_t*)tile;
  const uint16_t* v = (const uint16_t*)(tile + 64 * dk);
  if (value) return widen(v[((d / 16 * 16 + p / 2) * 16 + d % 16) * 2 + p % 2]);
  return widen(k[((half * dk / 2 + d / 2) * 16 + j) * 2 + d % 2]);
}

void require(bool ok, const char* what) {
  if (!ok) throw std::invalid_argument(what);
}

}  // namespace

KVPool::KVPool(int blocks, int size, int layer_count, int heads, int dim, bool float32)
    : num_blocks(blocks), block_size(size), layers(layer_count), kv_heads(heads), head_dim(dim), f32(float32) {
  require(num_blocks >= 1, "num_blocks must be at least 1");
  require(block_size >= 32 && block_size % 32 == 0, "block_size must be a multiple of 32");
  require(layers >= 1 && kv_heads >= 1, "layers and kv_heads must be at least 1");
  require(head_dim >= 1 && head_dim <= 512, "head_dim must lie between 1 and 512");
  const int64_t stride = (int64_t)layers * kv_heads * (block_size / 32) * tile_bytes(head_dim, f32);
  require(stride <= (int64_t{1} << 46) / num_blocks, "the pool is larger than the address space");
  memory_ = Mapping::zeroed((size_t)(stride * num_blocks));
}

int64_t KVPool::tile_bytes(int head_dim, bool f32) {
  return f32 ? 256 * (int64_t)head_dim : 64 * (up(head_dim, 32) + up(head_dim, 16));
}

KVLayer KVPool::layer(int index) const {
  KVLayer kv{};
  kv.tile_stride = tile_bytes(head_dim, f32);
  kv.head_stride = kv.tile_stride * (block_size / 32);
  kv.block_stride = kv.head_stride * kv_heads * layers;
  kv.base = memory_.data() + index * kv.head_stride * kv_heads;
  kv.block_size = block_size;
  kv.head_dim = head_dim;
  kv.kv_heads = kv_heads;
  kv.f32 = f32;
  return kv;
}

void KVPool::read(int index, int block, float* key, float* value) const {
  require(index >= 0 && index < layers, "layer is outside the pool");
  require(block >= 0 && block < num_blocks, "block is outside the pool");
  const KVLayer kv = layer(index);
  for (int p = 0; p < block_size; p++) {
    for (int h = 0; h < kv_heads; h++) {
      const uint8_t* tile = kv.base + block * kv.block_stride + h * kv.head_stride + p / 32 * kv.tile_stride;
      for (int d = 0; d < head_dim; d++) {
        *key++ = element(kv, tile, false, p % 32, d);
        *value++ = element(kv, tile, true, p % 32, d);
      }
    }
  }
}

void KVPool::fill(float value) {
  if (f32) {
    float* p = (float*)memory_.data();
    for (size_t i = 0; i < bytes() / 4; i++) p[i] = value;
    return;
  }
  uint32_t u;
  std::memcpy(&u, &value, 4);
  const uint16_t h = std::isnan(value) ? 0x7fc0 : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
  uint16_t* p = (uint16_t*)memory_.data();
  for (size_t i = 0; i < bytes() / 2; i++) p[i] = h;
}

}  // namespace octavo
