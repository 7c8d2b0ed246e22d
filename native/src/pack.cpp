// Packing and unpacking of weights (pack.h). Runs once a model, when its packed file is written; plain scalar code.
#include "pack.h"

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

namespace octavo {
namespace {

constexpr int64_t kCols = 16, kDepth = 32;
constexpr int64_t kBf16Tile = 1024, kQ8Tile = 544, kQ4Tile = 320;
constexpr int64_t kQ8Source = 34, kQ4Source = 20;

float bits_to_float(uint32_t u) {
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}

float half_to_float(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000) << 16, mag = h & 0x7fff;
  if (mag >= 0x7c00) return bits_to_float(sign | 0x7f800000 | (mag << 13));
  if (mag >= 0x400) return bits_to_float(sign | ((mag << 13) + (112u << 23)));
  const float f = (float)mag * 0x1p-24f;
  return sign ? -f : f;
}

float bf16_to_float(uint16_t h) { return bits_to_float((uint32_t)h << 16); }

uint16_t float_to_bf16(float f) {
  if (f != f) return 0x7fc0;
  uint32_t u;
  std::memcpy(&u, &f, 4);
  return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

uint16_t load_u16(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}

void store_u16(uint8_t* p, uint16_t v) { std::memcpy(p, &v, 2); }

bool half_finite(uint16_t h) { return (h & 0x7c00) != 0x7c00; }

// Value i of a source row, as float32.
float source_value(SourceType type, const uint8_t* row, int64_t i) {
  switch (type) {
    case SourceType::kF32: {
      float f;
      std::memcpy(&f, row + 4 * i, 4);
      return f;
    }
    case SourceType::kF16:
      return half_to_float(load_u16(row + 2 * i));
    case SourceType::kBf16:
      return bf16_to_float(load_u16(row + 2 * i));
    case SourceType::kQ8_0: {
      const uint8_t* b = row + i / 32 * kQ8Source;
      return half_to_float(load_u16(b)) * (float)(int8_t)b[2 + i % 32];
    }
    case SourceType::kQ4_1: {
      const uint8_t* b = row + i / 32 * kQ4Source;
      const int j = (int)(i % 32), q = j < 16 ? b[4 + j] & 15 : b[4 + j - 16] >> 4;
      return std::fma(half_to_float(load_u16(b)), (float)q, half_to_float(load_u16(b + 2)));
    }
  }
  return 0.0f;
}

// One column (a source row) of one tile. `dst` is the tile, already zero.
void pack_q8_column(const uint8_t* block, int64_t column, uint8_t* dst) {
  for (int64_t i = 0; i < kDepth; i++) dst[i * kCols + column] = block[2 + i];
  store_u16(dst + 512 + 2 * column, load_u16(block));
}

void pack_q4_column(const uint8_t* block, int64_t column, uint8_t* dst) {
  uint32_t words[4] = {};
  for (int i = 0; i < kDepth; i++) {
    const uint32_t q = i < 16 ? block[4 + i] & 15 : block[4 + i - 16] >> 4;
    const int pair = i / 2;
    words[pair / 8 * 2 + i % 2] |= q << (4 * (pair % 8));
  }
  for (int g = 0; g < 4; g++) std::memcpy(dst + (g * kCols + column) * 4, &words[g], 4);
  store_u16(dst + 256 + 2 * column, load_u16(block));
  store_u16(dst + 288 + 2 * column, load_u16(block + 2));
}

void pack_quantised(WeightKind kind, int64_t n, int64_t k, const uint8_t* src, uint8_t* dst) {
  const bool q4 = kind == WeightKind::kQ4_1;
  const int64_t block_bytes = q4 ? kQ4Source : kQ8Source, tile_bytes = q4 ? kQ4Tile : kQ8Tile, tiles = k / kDepth;
  for (int64_t row = 0; row < n; row++)
    for (int64_t t = 0; t < tiles; t++) {
      const uint8_t* block = src + (row * tiles + t) * block_bytes;
      if (!half_finite(load_u16(block)) || (q4 && !half_finite(load_u16(block + 2))))
        throw std::invalid_argument("row " + std::to_string(row) + " has a block whose scale is not finite");
      uint8_t* tile = dst + (row / kCols * tiles + t) * tile_bytes;
      if (q4)
        pack_q4_column(block, row % kCols, tile);
      else
        pack_q8_column(block, row % kCols, tile);
    }
}

int64_t pair_offset(int64_t tiles, int64_t row, int64_t i) {
  const int64_t tile = row / kCols * tiles + i / kDepth, within = i % kDepth;
  return tile * kBf16Tile + ((within / 2 * kCols + row % kCols) * 2 + within % 2) * 2;
}

// Value i of packed row `row`, as stored.
float packed_value(WeightKind kind, int64_t k, const uint8_t* packed, int64_t row, int64_t i) {
  const int64_t tiles = (k + kDepth - 1) / kDepth, tile = row / kCols * tiles + i / kDepth;
  const int64_t column = row % kCols, within = i % kDepth;
  switch (kind) {
    case WeightKind::kBf16:
      return bf16_to_float(load_u16(packed + pair_offset(tiles, row, i)));
    case WeightKind::kQ8_0: {
      const uint8_t* p = packed + tile * kQ8Tile;
      return half_to_float(load_u16(p + 512 + 2 * column)) * (float)(int8_t)p[within * kCols + column];
    }
    case WeightKind::kQ4_1: {
      const uint8_t* p = packed + tile * kQ4Tile;
      const int64_t pair = within / 2, g = pair / 8 * 2 + within % 2;
      uint32_t word;
      std::memcpy(&word, p + (g * kCols + column) * 4, 4);
      const float q = (float)(word >> (4 * (pair % 8)) & 15);
      return std::fma(half_to_float(load_u16(p + 256 + 2 * column)), q, half_to_float(load_u16(p + 288 + 2 * column)));
    }
    case WeightKind::kF32: {
      float f;
      std::memcpy(&f, packed + ((row / kCols * k + i) * kCols + column) * 4, 4);
      return f;
    }
  }
  return 0.0f;
}

}  // namespace

size_t source_row_bytes(SourceType type, int64_t k) {
  switch (type) {
    case SourceType::kF32:
      return (size_t)k * 4;
    case SourceType::kF16:
    case SourceType::kBf16:
      return (size_t)k * 2;
    case SourceType::kQ8_0:
    case SourceType::kQ4_1:
      if (k % kDepth) throw std::invalid_argument("rows of a quantised type must be a multiple of 32 long");
      return (size_t)(k / kDepth * (type == SourceType::kQ8_0 ? kQ8Source : kQ4Source));
  }
  return 0;
}

size_t packed_bytes(WeightKind kind, int64_t n, int64_t k) {
  const int64_t blocks = (n + kCols - 1) / kCols, tiles = (k + kDepth - 1) / kDepth;
  switch (kind) {
    case WeightKind::kBf16:
      return (size_t)(blocks * tiles * kBf16Tile);
    case WeightKind::kQ8_0:
      return (size_t)(blocks * tiles * kQ8Tile);
    case WeightKind::kQ4_1:
      return (size_t)(blocks * tiles * kQ4Tile);
    case WeightKind::kF32:
      return (size_t)(blocks * k * kCols * 4);
  }
  return 0;
}

bool can_pack(SourceType type, WeightKind kind) {
  switch (kind) {
    case WeightKind::kF32:
      return true;
    case WeightKind::kBf16:
      return type == SourceType::kF32 || type == SourceType::kF16 || type == SourceType::kBf16;
    case WeightKind::kQ8_0:
      return type == SourceType::kQ8_0;
    case WeightKind::kQ4_1:
      return type == SourceType::kQ4_1;
  }
  return false;
}

void pack(SourceType type, WeightKind kind, int64_t n, int64_t k, const uint8_t* src, uint8_t* dst) {
  if (!can_pack(type, kind)) throw std::invalid_argument("this source type cannot be packed as this kind");
  std::memset(dst, 0, packed_bytes(kind, n, k));
  if (kind == WeightKind::kQ8_0 || kind == WeightKind::kQ4_1) {
    source_row_bytes(type, k);  // refuses a k that is no multiple of 32
    pack_quantised(kind, n, k, src, dst);
    return;
  }
  const size_t row_bytes = source_row_bytes(type, k);
  const int64_t tiles = (k + kDepth - 1) / kDepth;
  for (int64_t row = 0; row < n; row++)
    for (int64_t i = 0; i < k; i++) {
      const float f = source_value(type, src + row * row_bytes, i);
      if (kind == WeightKind::kBf16)
        store_u16(dst + pair_offset(tiles, row, i), float_to_bf16(f));
      else
        std::memcpy(dst + ((row / kCols * k + i) * kCols + row % kCols) * 4, &f, 4);
    }
}

void unpack(WeightKind kind, int64_t n, int64_t k, const uint8_t* packed, float* dst, bool rounded) {
  const bool quantised = kind == WeightKind::kQ8_0 || kind == WeightKind::kQ4_1;
  for (int64_t row = 0; row < n; row++)
    for (int64_t i = 0; i < k; i++) {
      float f = packed_value(kind, k, packed, row, i);
      if (rounded && kind != WeightKind::kBf16) f = bf16_to_float(float_to_bf16(f));
      dst[row * k + i] = quantised ? f + 0.0f : f;
    }
}

}  // namespace octavo
