// Rows as they lie in model files: GGUF's block formats, plain floats, and the two neutral formats that quantised
// safetensors are turned into (G4, per 32 inputs: float d, float m, 16 bytes of nibbles, input j < 16 in the low and
// 16 + j in the high half of byte j; G8: float d, int8 q[32]).
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels.h"

namespace octavo {

enum class SourceType : int32_t {
  kF32,
  kF16,
  kBf16,
  kQ8_0,
  kQ4_1,
  kQ4_0,
  kQ5_0,
  kQ5_1,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS,
  kG4,
  kG8,
};

struct SourceInfo {
  const char* name;
  int values;       // of a block
  int bytes;        // of a block
  WeightKind kind;  // that keeps its precision; kBf16 for the float types, where F32 and F16 are rounded
};
const SourceInfo& source_info(SourceType type);
// Throws std::invalid_argument, naming what is known.
SourceType source_type(const std::string& name);
inline bool quantised(SourceType type) { return type > SourceType::kBf16; }

// One block of a quantised row: codes as formats.h numbers them, and scales.
struct SourceBlock {
  uint8_t code[256];
  uint16_t d, m;         // halves: scale, and minimum (grouped formats: -dmin)
  float wide_d, wide_m;  // the same as floats
  int8_t sub[16];        // grouped formats: a scale for each 32 (or 16) inputs
  uint8_t min[16];       // and what multiplies -dmin
};
void read_block(SourceType type, const uint8_t* src, SourceBlock& block);
// Whether the block's scales are finite, and floats small enough (2^100) that no value leaves bfloat16's range.
bool usable(SourceType type, const SourceBlock& block);

float half_to_float(uint16_t h);

}  // namespace octavo
