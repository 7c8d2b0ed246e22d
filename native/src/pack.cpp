// Packing and unpacking of weights (pack.h). Runs once a model, when its packed file is written; plain scalar code.
#include "pack.h"

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "formats.h"

namespace octavo {
namespace {

constexpr int64_t kCols = 16, kDepth = 32;

template <class T>
T load(const uint8_t* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

template <class T>
void store(uint8_t* p, T v) {
  std::memcpy(p, &v, sizeof v);
}

float bf16_to_float(uint16_t h) {
  const uint32_t u = (uint32_t)h << 16;
  return load<float>((const uint8_t*)&u);
}

uint16_t float_to_bf16(float f) {
  if (f != f) return 0x7fc0;
  const uint32_t u = load<uint32_t>((const uint8_t*)&f);
  return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

bool is_float(WeightKind kind) { return kind == WeightKind::kBf16 || kind == WeightKind::kF32; }

// Scale and minimum of some weights, the products with sub-scales done.
struct ScalePair {
  float d, m;
};

float value(const Format& f, uint8_t code, ScalePair s) {
  if (has_min(f.scales)) return std::fma(s.d, (float)code, s.m);
  const int q = f.bits == 8 ? (int8_t)code : (f.codebook ? kCodebook[code] : code) - f.zero;
  return s.d * (float)q;
}

// As kernels leave it: denormals, which only float scales can give, are zero.
float flush(const Format& f, float w) {
  const bool wide = f.scales == Scales::kFloat || f.scales == Scales::kFloatMin;
  return wide && std::fabs(w) < 0x1p-126f ? 0.0f : w + 0.0f;
}

// Where the bits of input i of a tile lie in the plane of `width` bits.
struct Place {
  int word, bit;
};

Place place(WeightKind kind, int width, int i) {
  const int t = i / 2 % 8, odd = i % 2, h = i / 16, j = t / 4, b = 8 * (t % 4);
  if (width == 4) return {2 * h + odd, kind == WeightKind::kQ4_1 ? 4 * t : b + 4 * j};
  if (width == 2) return {h, b + 4 * odd + 2 * j};
  return {0, b + 4 * h + 2 * odd + j};
}

// One column of a tile's codes.
void pack_codes(WeightKind kind, const uint8_t* code, int64_t column, uint8_t* dst) {
  const int bits = format_of(kind).bits;
  if (bits == 8) {
    for (int64_t i = 0; i < kDepth; i++) dst[i * kCols + column] = code[i];
    return;
  }
  for (int width = 4, shift = 0; width > 0; width /= 2) {
    if (!(bits & width)) continue;
    uint32_t words[4] = {};
    for (int i = 0; i < kDepth; i++) {
      const Place at = place(kind, width, i);
      words[at.word] |= (uint32_t)(code[i] >> shift & ((1 << width) - 1)) << at.bit;
    }
    for (int g = 0; g < width; g++) store(dst + (g * kCols + column) * 4, words[g]);
    dst += 64 * width;
    shift += width;
  }
}

uint8_t packed_code(WeightKind kind, const uint8_t* tile, int64_t column, int i) {
  const int bits = format_of(kind).bits;
  if (bits == 8) return tile[i * kCols + column];
  int code = 0;
  for (int width = 4, shift = 0; width > 0; width /= 2) {
    if (!(bits & width)) continue;
    const Place at = place(kind, width, i);
    const uint32_t word = load<uint32_t>(tile + (at.word * kCols + column) * 4);
    code |= (int)(word >> at.bit & ((1u << width) - 1)) << shift;
    tile += 64 * width;
    shift += width;
  }
  return (uint8_t)code;
}

// One column of tile t of a block's scales; `p` lies behind the codes.
void pack_scales(Scales form, const SourceBlock& b, int64_t t, int64_t column, uint8_t* p) {
  switch (form) {
    case Scales::kHalf:
    case Scales::kHalfMin:
      store(p + 2 * column, b.d);
      if (form == Scales::kHalfMin) store(p + 32 + 2 * column, b.m);
      return;
    case Scales::kFloat:
    case Scales::kFloatMin:
      store(p + 4 * column, b.wide_d);
      if (form == Scales::kFloatMin) store(p + 64 + 4 * column, b.wide_m);
      return;
    case Scales::kSub32:
    case Scales::kSub32Min:
      p[column] = (uint8_t)b.sub[t];
      if (form == Scales::kSub32Min) p[16 + column] = b.min[t];
      return;
    case Scales::kSub16:
    case Scales::kSub16Min:
      for (int h = 0; h < 2; h++)
        p[16 * h + column] = (uint8_t)(b.sub[2 * t + h] | (form == Scales::kSub16Min ? b.min[2 * t + h] << 4 : 0));
      return;
  }
}

// Scale and minimum of input i of a tile, as packed.
ScalePair packed_scale(Scales form, const uint8_t* head, const uint8_t* p, int64_t column, int i) {
  const float d = half_to_float(load<uint16_t>(head + 2 * column)),
              m = half_to_float(load<uint16_t>(head + 32 + 2 * column));
  switch (form) {
    case Scales::kHalf:
      return {half_to_float(load<uint16_t>(p + 2 * column)), 0.0f};
    case Scales::kHalfMin:
      return {half_to_float(load<uint16_t>(p + 2 * column)), half_to_float(load<uint16_t>(p + 32 + 2 * column))};
    case Scales::kFloat:
      return {load<float>(p + 4 * column), 0.0f};
    case Scales::kFloatMin:
      return {load<float>(p + 4 * column), load<float>(p + 64 + 4 * column)};
    case Scales::kSub32:
      return {d * (float)(int8_t)p[column], 0.0f};
    case Scales::kSub32Min:
      return {d * (float)(int8_t)p[column], m * (float)p[16 + column]};
    case Scales::kSub16:
      return {d * (float)(int8_t)p[i / 16 * 16 + column], 0.0f};
    case Scales::kSub16Min:
      return {d * (float)(p[i / 16 * 16 + column] & 15), m * (float)(p[i / 16 * 16 + column] >> 4)};
  }
  return {};
}

// Scale and minimum of input i of a source block.
ScalePair source_scale(Scales form, const SourceBlock& b, int i) {
  if (!has_subs(form)) return {b.wide_d, b.wide_m};
  const int s = form == Scales::kSub16 || form == Scales::kSub16Min ? i / 16 : i / 32;
  return {b.wide_d * (float)b.sub[s], b.wide_m * (float)b.min[s]};
}

[[noreturn]] void refuse_block(int64_t row, int64_t block) {
  throw std::invalid_argument("row " + std::to_string(row) + ", block " + std::to_string(block) +
                              ": the scale is not finite or too large");
}

struct Rows {
  SourceType type;
  WeightKind kind;
  int64_t n, k, first;
  const uint8_t* src;
};

void pack_quantised(const Rows& r, uint8_t* dst) {
  const SourceInfo& info = source_info(r.type);
  const int64_t blocks = r.k / info.values, tiles = info.values / kDepth, column_block = block_bytes(r.kind, r.k);
  const Format& f = format_of(r.kind);
  SourceBlock b;
  for (int64_t row = 0; row < r.n; row++)
    for (int64_t i = 0; i < blocks; i++) {
      read_block(r.type, r.src + (row * blocks + i) * info.bytes, b);
      if (!usable(r.type, b)) refuse_block(r.first + row, i);
      const int64_t column = row % kCols;
      uint8_t* to = dst + row / kCols * column_block;
      uint8_t* head = to + head_offset(r.kind, i * tiles);
      if (grouped(r.kind)) store(head + 2 * column, b.d);
      if (grouped(r.kind) && has_min(f.scales)) store(head + 32 + 2 * column, b.m);
      for (int64_t t = 0; t < tiles; t++) {
        uint8_t* tile = to + tile_offset(r.kind, i * tiles + t);
        pack_codes(r.kind, b.code + t * kDepth, column, tile);
        pack_scales(f.scales, b, t, column, tile + code_bytes(r.kind));
      }
    }
}

float plain_value(SourceType type, const uint8_t* row, int64_t i) {
  if (type == SourceType::kF32) return load<float>(row + 4 * i);
  const uint16_t h = load<uint16_t>(row + 2 * i);
  return type == SourceType::kF16 ? half_to_float(h) : bf16_to_float(h);
}

// The exact values of source row `row`.
void read_row(const Rows& r, int64_t row, float* to) {
  const SourceInfo& info = source_info(r.type);
  const uint8_t* src = r.src + row * (int64_t)source_row_bytes(r.type, r.k);
  if (!quantised(r.type)) {
    for (int64_t i = 0; i < r.k; i++) to[i] = plain_value(r.type, src, i);
    return;
  }
  const Format& f = format_of(info.kind);
  SourceBlock b;
  for (int64_t i = 0; i < r.k; i += info.values) {
    read_block(r.type, src + i / info.values * info.bytes, b);
    if (!usable(r.type, b)) refuse_block(r.first + row, i / info.values);
    for (int j = 0; j < info.values; j++) to[i + j] = flush(f, value(f, b.code[j], source_scale(f.scales, b, j)));
  }
}

uint8_t* pair_at(uint8_t* block, int64_t column, int64_t i) {
  const int64_t within = i % kDepth;
  return block + i / kDepth * 1024 + ((within / 2 * kCols + column) * 2 + within % 2) * 2;
}

void pack_floats(const Rows& r, uint8_t* dst) {
  std::vector<float> values((size_t)r.k);
  const int64_t column_block = block_bytes(r.kind, r.k);
  for (int64_t row = 0; row < r.n; row++) {
    read_row(r, row, values.data());
    uint8_t* to = dst + row / kCols * column_block;
    const int64_t column = row % kCols;
    for (int64_t i = 0; i < r.k; i++) {
      if (r.kind == WeightKind::kBf16)
        store(pair_at(to, column, i), float_to_bf16(values[(size_t)i]));
      else
        store(to + (i * kCols + column) * 4, values[(size_t)i]);
    }
  }
}

// Value i of one column of a column block, as stored.
float packed_value(WeightKind kind, const uint8_t* block, int64_t column, int64_t i) {
  if (kind == WeightKind::kBf16) return bf16_to_float(load<uint16_t>(pair_at((uint8_t*)block, column, i)));
  if (kind == WeightKind::kF32) return load<float>(block + (i * kCols + column) * 4);
  const Format& f = format_of(kind);
  const uint8_t* tile = block + tile_offset(kind, i / kDepth);
  const int within = (int)(i % kDepth);
  const ScalePair s =
      packed_scale(f.scales, block + head_offset(kind, i / kDepth), tile + code_bytes(kind), column, within);
  return flush(f, value(f, packed_code(kind, tile, column, within), s));
}

}  // namespace

size_t source_row_bytes(SourceType type, int64_t k) {
  const SourceInfo& info = source_info(type);
  if (k % info.values) {
    throw std::invalid_argument("rows of " + std::string(info.name) + " are a multiple of " +
                                std::to_string(info.values) + " long");
  }
  return (size_t)(k / info.values * info.bytes);
}

size_t packed_bytes(WeightKind kind, int64_t n, int64_t k) {
  if (grouped(kind) && k % (kGroupTiles * kDepth)) {
    throw std::invalid_argument("rows of the K types are a multiple of 256 long");
  }
  return (size_t)((n + kCols - 1) / kCols * block_bytes(kind, k));
}

bool can_pack(SourceType type, WeightKind kind) { return kind == WeightKind::kF32 || kind == source_info(type).kind; }

void pack(SourceType type, WeightKind kind, int64_t n, int64_t k, const uint8_t* src, uint8_t* dst, int64_t first_row) {
  if (!can_pack(type, kind)) throw std::invalid_argument("this source type cannot be packed as this kind");
  source_row_bytes(type, k);  // refuses a k that does not fit
  std::memset(dst, 0, packed_bytes(kind, n, k));
  const Rows rows = {type, kind, n, k, first_row, src};
  if (is_float(kind))
    pack_floats(rows, dst);
  else
    pack_quantised(rows, dst);
}

void unpack(WeightKind kind, int64_t n, int64_t k, const uint8_t* packed, float* dst, bool rounded) {
  for (int64_t row = 0; row < n; row++)
    for (int64_t i = 0; i < k; i++) {
      float f = packed_value(kind, packed + row / kCols * block_bytes(kind, k), row % kCols, i);
      if (rounded && kind != WeightKind::kBf16) f = bf16_to_float(float_to_bf16(f));
      dst[row * k + i] = f;
    }
}

}  // namespace octavo
