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

// One layer and head of a block between its tiles and rows of head_dim elements, [position, dim] for keys, then values.
// `Export` says which way. Keys and values of the bf16 path lie in pairs: of dims, and of positions.
template <bool Export>
void KVPool::move_f32(float* tiles, float* key, float* value) const {
  const int64_t hd = head_dim, rows = block_size;
  for (int64_t p = 0; p < rows; p++) {
    float* tile = tiles + p / 32 * (tile_bytes(head_dim, true) / 4);
    float* k = tile + p % 32 / 16 * hd * 16 + p % 16;
    for (int64_t d = 0; d < hd; d++) Export ? (void)(key[p * hd + d] = k[d * 16]) : (void)(k[d * 16] = key[p * hd + d]);
    float* v = tile + (32 + p % 32) * hd;
    Export ? std::memcpy(value + p * hd, v, (size_t)hd * 4) : std::memcpy(v, value + p * hd, (size_t)hd * 4);
  }
}

template <bool Export>
void KVPool::move_bf16(uint8_t* tiles, uint16_t* key, uint16_t* value) const {
  const int64_t hd = head_dim, dk = up(hd, 32), stride = tile_bytes(head_dim, false);
  for (int64_t first = 0; first < block_size; first += 32, tiles += stride) {
    uint16_t* k = (uint16_t*)tiles;
    for (int64_t p = 0; p < 32; p++) {
      uint16_t* from = k + (p / 16 * (dk / 2) * 16 + p % 16) * 2;
      uint16_t* row = key + (first + p) * hd;
      for (int64_t d = 0; d + 1 < hd; d += 2) {
        Export ? std::memcpy(row + d, from + d * 16, 4) : std::memcpy(from + d * 16, row + d, 4);
      }
      if (hd % 2) Export ? (void)(row[hd - 1] = from[(hd - 1) * 16]) : (void)(from[(hd - 1) * 16] = row[hd - 1]);
    }
    uint16_t* v = (uint16_t*)(tiles + 64 * dk);
    for (int64_t p = 0; p < 32; p += 2) {
      uint16_t *even = value + (first + p) * hd, *odd = even + hd;
      for (int64_t d = 0; d < hd; d++) {
        uint16_t* pair = v + ((d / 16 * 16 + p / 2) * 16 + d % 16) * 2;
        if (Export) {
          even[d] = pair[0], odd[d] = pair[1];
        } else {
          pair[0] = even[d], pair[1] = odd[d];
        }
      }
    }
  }
}

template <bool Export>
void KVPool::move(int block, uint8_t* wire) const {
  const int64_t part = (int64_t)block_size * head_dim * (f32 ? 4 : 2);
  for (int i = 0; i < layers; i++) {
    const KVLayer kv = layer(i);
    for (int h = 0; h < kv_heads; h++) {
      uint8_t* tiles = kv.base + block * kv.block_stride + h * kv.head_stride;
      uint8_t *key = wire + ((2 * i + 0) * kv_heads + h) * part, *value = wire + ((2 * i + 1) * kv_heads + h) * part;
      if (f32) {
        move_f32<Export>((float*)tiles, (float*)key, (float*)value);
      } else {
        move_bf16<Export>(tiles, (uint16_t*)key, (uint16_t*)value);
      }
    }
  }
}

void KVPool::export_block(int block, uint8_t* wire) const {
  require(block >= 0 && block < num_blocks, "block is outside the pool");
  move<true>(block, wire);
}

void KVPool::import_block(int block, const uint8_t* wire) {
  require(block >= 0 && block < num_blocks, "block is outside the pool");
  const KVLayer kv = layer(0);
  std::memset(kv.base + block * kv.block_stride, 0, (size_t)kv.block_stride);  // padding of dims is zero
  move<false>(block, (uint8_t*)wire);
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
