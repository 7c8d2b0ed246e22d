// A checksum against accidental damage, at the speed of memory. It is no defence against forgery.
#pragma once
#include <cstddef>
#include <cstdint>

namespace octavo {

// Four lanes of 64-bit words, each lane h = (h ^ word) * odd constant, then folded; a changed word changes its lane.
uint64_t checksum(const uint8_t* data, size_t bytes);

}  // namespace octavo
