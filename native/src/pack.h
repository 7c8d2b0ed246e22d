// Packed weights: the layout that kernels read. Column blocks of 16 outputs; within a block, tiles of 32 inputs
// in ascending order. n is padded to 16 and k to 32 with zeros.
//   kBf16  1024 bytes a tile: [16 pairs of inputs][16 columns][2] bfloat16
//   kF32   64 bytes an input: [16 columns] float (no tiles, no padding of k)
// The quantised kinds are a width of codes and a form of scales (formats.h); a tile is its codes, then its scales.
// Codes of 8 bits: int8 [32 inputs][16 columns]. Narrower ones are split into planes of 4, 2 and 1 bits, those that
// the width has, from the lowest bits up; a plane is words of [16 columns] uint32. Input i of a tile is input i % 2
// of pair 8 h + 4 j + b (h, j < 2, b < 4); with g = 2 h + i % 2 its bits lie in byte b of
//   the 4-bit plane's word g at bit 4 j (kQ4_1 alone keeps pair 8 h + t at bit 4 t of its word),
//   the 2-bit plane's word h at bit 4 (i % 2) + 2 j,
//   the 1-bit plane's only word at bit 2 g + j.
// Grouped forms (the K types) put 8 tiles into a group, headed by the halves d, and -dmin where there is a minimum.
//
// Values: w = fma(d', q, m') in float, d' = d * sub-scale and m' = -dmin * sub-minimum exact; without a minimum
// w = d' * (q - zero), or d' times the codebook's value; rounded to bfloat16 where a bf16 product reads them, and zero
// is always +0. kF32 is rounded too where a bf16 product reads it.
//   bits a weight: q2_k 2.625, q3_k 3.5625, iq4_xs 4.3125, q4_0 and iq4_nl 4.5, q4_k 4.625, q4_1 5, q5_0 5.5,
//   q5_k 5.625, q5_1 and g4 6, q6_k 6.5625, q8_0 8.5, g8 9
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels.h"
#include "source.h"

namespace octavo {

// Bytes of one source row of k values. Throws std::invalid_argument where k is no whole number of blocks.
size_t source_row_bytes(SourceType type, int64_t k);
// Bytes of a packed matrix. Throws std::invalid_argument where k is no whole number of the kind's groups.
size_t packed_bytes(WeightKind kind, int64_t n, int64_t k);
// Whether `type` can be packed as `kind`: any type to kF32 (its exact values); F32, F16 and BF16 to kBf16 (rounded to
// nearest even); every quantised type to its own kind.
bool can_pack(SourceType type, WeightKind kind);
// Packs n rows of k values, contiguous at `src`, to `dst` (packed_bytes, 64-byte aligned). Throws
// std::invalid_argument where a quantised block's scale or minimum is not finite, or the types do not fit; rows are
// named from `first_row` on, so that a matrix can be packed in pieces of a multiple of 16 rows.
void pack(SourceType type, WeightKind kind, int64_t n, int64_t k, const uint8_t* src, uint8_t* dst,
          int64_t first_row = 0);
// Expands to float [n, k]: the values as a bf16 product reads them, or unrounded.
void unpack(WeightKind kind, int64_t n, int64_t k, const uint8_t* packed, float* dst, bool rounded = true);

}  // namespace octavo
