// The quantised formats of packed weights, as a table: a packed kind is a width of codes and a form of scales (pack.h
// describes the bytes). One expansion a (width, form) serves every kind that shares it.
#pragma once
#include <cstdint>

#include "kernels.h"

namespace octavo {

enum class Scales : int32_t {
  kHalf,      // half d
  kHalfMin,   // half d, m
  kFloat,     // float d
  kFloatMin,  // float d, m
  kSub32,     // a signed byte a tile; half d a group of 8 tiles
  kSub32Min,  // the same, with a byte for the minimum; half d and -dmin a group
  kSub16,     // a signed byte for each half of a tile; half d a group
  kSub16Min,  // nibbles for scale and minimum for each half of a tile; half d and -dmin a group
};

struct Format {
  int bits;       // of a code
  Scales scales;  // what multiplies codes
  int zero;       // the code of value 0, where the form has no minimum
  bool codebook;  // codes are indices into kCodebook
};

// By WeightKind. Unused for kBf16 and kF32.
static constexpr Format kFormats[kWeightKinds] = {
    {},
    {8, Scales::kHalf, 0, false},     // kQ8_0
    {4, Scales::kHalfMin, 0, false},  // kQ4_1
    {},
    {4, Scales::kHalf, 8, false},      // kQ4_0
    {5, Scales::kHalf, 16, false},     // kQ5_0
    {5, Scales::kHalfMin, 0, false},   // kQ5_1
    {2, Scales::kSub16Min, 0, false},  // kQ2_K
    {3, Scales::kSub16, 4, false},     // kQ3_K
    {4, Scales::kSub32Min, 0, false},  // kQ4_K
    {5, Scales::kSub32Min, 0, false},  // kQ5_K
    {6, Scales::kSub16, 32, false},    // kQ6_K
    {4, Scales::kHalf, 128, true},     // kIQ4_NL
    {4, Scales::kSub32, 128, true},    // kIQ4_XS
    {4, Scales::kFloatMin, 0, false},  // kG4
    {8, Scales::kFloat, 0, false},     // kG8
};

// The values of IQ4 codes, each plus 128.
static constexpr uint8_t kCodebook[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

static constexpr const Format& format_of(WeightKind kind) { return kFormats[(int)kind]; }

static constexpr bool has_min(Scales s) {
  return s == Scales::kHalfMin || s == Scales::kFloatMin || s == Scales::kSub32Min || s == Scales::kSub16Min;
}
static constexpr bool has_subs(Scales s) { return s >= Scales::kSub32; }

// Bytes of a tile's codes, of its scales, and of what a group of tiles shares.
static constexpr int code_bytes(WeightKind kind) {
  return kind == WeightKind::kBf16 ? 1024 : kind == WeightKind::kF32 ? 2048 : 64 * format_of(kind).bits;
}
static constexpr int scale_bytes(WeightKind kind) {
  if (kind == WeightKind::kBf16 || kind == WeightKind::kF32) return 0;
  switch (format_of(kind).scales) {
    case Scales::kSub32:
      return 16;
    case Scales::kHalf:
    case Scales::kSub32Min:
    case Scales::kSub16:
    case Scales::kSub16Min:
      return 32;
    case Scales::kHalfMin:
    case Scales::kFloat:
      return 64;
    case Scales::kFloatMin:
      return 128;
  }
  return 0;
}
static constexpr int tile_bytes(WeightKind kind) { return code_bytes(kind) + scale_bytes(kind); }

static constexpr bool grouped(WeightKind kind) {
  return kind != WeightKind::kBf16 && kind != WeightKind::kF32 && has_subs(format_of(kind).scales);
}
static constexpr int head_bytes(WeightKind kind) {
  return !grouped(kind) ? 0 : has_min(format_of(kind).scales) ? 64 : 32;
}
constexpr int kGroupTiles = 8;
static constexpr int group_bytes(WeightKind kind) { return head_bytes(kind) + kGroupTiles * tile_bytes(kind); }

// Bytes of a column block of k inputs.
static constexpr int64_t block_bytes(WeightKind kind, int64_t k) {
  if (kind == WeightKind::kF32) return k * 64;
  const int64_t tiles = (k + 31) / 32;
  return grouped(kind) ? tiles / kGroupTiles * group_bytes(kind) : tiles * tile_bytes(kind);
}
// Where tile t of a column block starts, and what its group shares.
static constexpr int64_t tile_offset(WeightKind kind, int64_t t) {
  if (!grouped(kind)) return t * tile_bytes(kind);
  return t / kGroupTiles * group_bytes(kind) + head_bytes(kind) + t % kGroupTiles * tile_bytes(kind);
}
static constexpr int64_t head_offset(WeightKind kind, int64_t t) {
  return grouped(kind) ? t / kGroupTiles * group_bytes(kind) : 0;
}

}  // namespace octavo
