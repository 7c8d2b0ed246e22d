#include "checksum.h"

#include <cstring>

namespace octavo {
namespace {

constexpr uint64_t kMultiplier = 0x9e3779b97f4a7c15ull;
constexpr int kLanes = 4;

uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * kMultiplier;
  return hash ^ (hash >> 32);
}

}  // namespace

uint64_t checksum(const uint8_t* data, size_t bytes) {
  uint64_t lanes[kLanes] = {1, 2, 3, 4};
  size_t at = 0;
  for (; at + 8 * kLanes <= bytes; at += 8 * kLanes) {
    uint64_t words[kLanes];
    memcpy(words, data + at, sizeof words);
    for (int i = 0; i < kLanes; i++) lanes[i] = mix(lanes[i], words[i]);
  }
  uint64_t hash = bytes;
  for (const uint64_t lane : lanes) hash = mix(hash, lane);
  for (; at < bytes; at++) hash = mix(hash, data[at]);
  return hash;
}

}  // namespace octavo
