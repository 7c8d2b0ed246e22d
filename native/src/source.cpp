// Reading blocks of quantised rows (source.h). Runs once a model; plain scalar code.
#include "source.h"

#include <cmath>
#include <cstring>
#include <stdexcept>

#include "formats.h"

namespace octavo {
namespace {

constexpr SourceInfo kSources[] = {
    {"F32", 1, 4, WeightKind::kBf16},          {"F16", 1, 2, WeightKind::kBf16},
    {"BF16", 1, 2, WeightKind::kBf16},         {"Q8_0", 32, 34, WeightKind::kQ8_0},
    {"Q4_1", 32, 20, WeightKind::kQ4_1},       {"Q4_0", 32, 18, WeightKind::kQ4_0},
    {"Q5_0", 32, 22, WeightKind::kQ5_0},       {"Q5_1", 32, 24, WeightKind::kQ5_1},
    {"Q2_K", 256, 84, WeightKind::kQ2_K},      {"Q3_K", 256, 110, WeightKind::kQ3_K},
    {"Q4_K", 256, 144, WeightKind::kQ4_K},     {"Q5_K", 256, 176, WeightKind::kQ5_K},
    {"Q6_K", 256, 210, WeightKind::kQ6_K},     {"IQ4_NL", 32, 18, WeightKind::kIQ4_NL},
    {"IQ4_XS", 256, 136, WeightKind::kIQ4_XS}, {"G4", 32, 24, WeightKind::kG4},
    {"G8", 32, 36, WeightKind::kG8},
};

uint16_t load_half(const uint8_t* p) {
  uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}

float load_float(const uint8_t* p) {
  float v;
  std::memcpy(&v, p, 4);
  return v;
}

// `count` codes from `bytes` bytes that hold them `bits` wide side by side: `span` codes share a shift, then the next.
void read_codes(const uint8_t* src, int count, int bits, int span, uint8_t* code) {
  const int per_byte = 8 / bits, mask = (1 << bits) - 1;
  for (int i = 0; i < count; i++) {
    const int part = i / (span * per_byte), within = i % (span * per_byte);
    code[i] = (uint8_t)(src[part * span + within % span] >> (bits * (within / span)) & mask);
  }
}

// Adds further bits above the `low` ones that are there.
void read_high(const uint8_t* src, int count, int bits, int span, int low, uint8_t* code) {
  uint8_t high[256];
  read_codes(src, count, bits, span, high);
  for (int i = 0; i < count; i++) code[i] = (uint8_t)(code[i] | high[i] << low);
}

// Bit i of 32 little-endian bits is the fifth bit of code i.
void read_fifth(const uint8_t* src, uint8_t* code) {
  for (int i = 0; i < 32; i++) code[i] = (uint8_t)(code[i] | (src[i / 8] >> (i % 8) & 1) << 4);
}

// The twelve bytes of Q4_K and Q5_K: eight 6-bit scales and eight 6-bit minima.
void read_scales6(const uint8_t* s, SourceBlock& b) {
  for (int j = 0; j < 4; j++) {
    b.sub[j] = (int8_t)(s[j] & 63);
    b.min[j] = s[4 + j] & 63;
    b.sub[4 + j] = (int8_t)((s[8 + j] & 15) | (s[j] >> 2 & 48));
    b.min[4 + j] = (uint8_t)((s[8 + j] >> 4) | (s[4 + j] >> 2 & 48));
  }
}

void set_scale(SourceBlock& b, const uint8_t* d) {
  b.d = load_half(d);
  b.wide_d = half_to_float(b.d);
}
void set_min(SourceBlock& b, const uint8_t* m, bool negate) {
  b.m = (uint16_t)(load_half(m) ^ (negate ? 0x8000 : 0));
  b.wide_m = half_to_float(b.m);
}

void read_q2_k(const uint8_t* s, SourceBlock& b) {
  for (int i = 0; i < 16; i++) {
    b.sub[i] = (int8_t)(s[i] & 15);
    b.min[i] = s[i] >> 4;
  }
  read_codes(s + 16, 256, 2, 32, b.code);
  set_scale(b, s + 80);
  set_min(b, s + 82, true);
}

void read_q3_k(const uint8_t* s, SourceBlock& b) {
  read_codes(s + 32, 256, 2, 32, b.code);
  read_high(s, 256, 1, 32, 2, b.code);
  const uint8_t* scales = s + 96;
  for (int i = 0; i < 16; i++) {
    const int low = scales[i % 8] >> (4 * (i / 8)) & 15, high = scales[8 + i % 4] >> (2 * (i / 4)) & 3;
    b.sub[i] = (int8_t)((low | high << 4) - 32);
  }
  set_scale(b, s + 108);
}

void read_q6_k(const uint8_t* s, SourceBlock& b) {
  read_codes(s, 256, 4, 64, b.code);
  read_high(s + 128, 256, 2, 32, 4, b.code);
  std::memcpy(b.sub, s + 192, 16);
  set_scale(b, s + 208);
}

void read_iq4_xs(const uint8_t* s, SourceBlock& b) {
  set_scale(b, s);
  const int high = load_half(s + 2);
  for (int i = 0; i < 8; i++)
    b.sub[i] = (int8_t)(((s[4 + i / 2] >> (4 * (i % 2)) & 15) | (high >> (2 * i) & 3) << 4) - 32);
  read_codes(s + 8, 256, 4, 16, b.code);
}

// Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL: scale, minimum, fifth bits, nibbles, each where the type has it.
void read_small(const uint8_t* s, bool min, bool fifth, SourceBlock& b) {
  set_scale(b, s);
  s += 2;
  if (min) {
    set_min(b, s, false);
    s += 2;
  }
  read_codes(s + (fifth ? 4 : 0), 32, 4, 16, b.code);
  if (fifth) read_fifth(s, b.code);
}

// Q4_K and Q5_K.
void read_large(const uint8_t* s, bool fifth, SourceBlock& b) {
  set_scale(b, s);
  set_min(b, s + 2, true);
  read_scales6(s + 4, b);
  read_codes(s + (fifth ? 48 : 16), 256, 4, 32, b.code);
  if (fifth) read_high(s + 16, 256, 1, 32, 4, b.code);
}

bool half_finite(uint16_t h) { return (h & 0x7c00) != 0x7c00; }
bool moderate(float f) { return std::fabs(f) < 0x1p100f; }
float flushed(float f) { return std::fabs(f) < 0x1p-126f ? 0.0f : f; }

}  // namespace

float half_to_float(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000) << 16, mag = h & 0x7fff;
  uint32_t bits = sign | ((mag << 13) + (112u << 23));
  if (mag >= 0x7c00) bits = sign | 0x7f800000 | (mag << 13);
  float f;
  std::memcpy(&f, &bits, 4);
  if (mag >= 0x400) return f;
  f = (float)mag * 0x1p-24f;
  return sign ? -f : f;
}

const SourceInfo& source_info(SourceType type) { return kSources[(int)type]; }

SourceType source_type(const std::string& name) {
  std::string known;
  int i = 0;
  for (const SourceInfo& s : kSources) {
    if (name == s.name) return (SourceType)i;
    known += (i++ ? ", " : "") + std::string(s.name);
  }
  throw std::invalid_argument("unknown source type " + name + "; known are " + known);
}

void read_block(SourceType type, const uint8_t* s, SourceBlock& b) {
  switch (type) {
    case SourceType::kQ4_0:
    case SourceType::kIQ4_NL:
      return read_small(s, false, false, b);
    case SourceType::kQ4_1:
      return read_small(s, true, false, b);
    case SourceType::kQ5_0:
      return read_small(s, false, true, b);
    case SourceType::kQ5_1:
      return read_small(s, true, true, b);
    case SourceType::kQ8_0:
      set_scale(b, s);
      std::memcpy(b.code, s + 2, 32);
      return;
    case SourceType::kQ2_K:
      return read_q2_k(s, b);
    case SourceType::kQ3_K:
      return read_q3_k(s, b);
    case SourceType::kQ4_K:
      return read_large(s, false, b);
    case SourceType::kQ5_K:
      return read_large(s, true, b);
    case SourceType::kQ6_K:
      return read_q6_k(s, b);
    case SourceType::kIQ4_XS:
      return read_iq4_xs(s, b);
    case SourceType::kG4:
      b.wide_d = flushed(load_float(s));
      b.wide_m = flushed(load_float(s + 4));
      return read_codes(s + 8, 32, 4, 16, b.code);
    case SourceType::kG8:
      b.wide_d = flushed(load_float(s));
      std::memcpy(b.code, s + 4, 32);
      return;
    case SourceType::kF32:
    case SourceType::kF16:
    case SourceType::kBf16:
      return;
  }
}

bool usable(SourceType type, const SourceBlock& b) {
  const Scales form = format_of(source_info(type).kind).scales;
  if (form == Scales::kFloat) return moderate(b.wide_d);
  if (form == Scales::kFloatMin) return moderate(b.wide_d) && moderate(b.wide_m);
  return half_finite(b.d) && (!has_min(form) || half_finite(b.m));
}

}  // namespace octavo
