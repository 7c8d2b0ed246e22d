// Packed weights: the layout that kernels read. Column blocks of 16 outputs; within a block, tiles of 32 inputs
// in ascending order. A tile's bytes:
//   kBf16  1024: [16 pairs of inputs][16 columns][2] bfloat16
//   kQ8_0   544: int8 q[32 inputs][16 columns], then the columns' scales d[16], IEEE half
//   kQ4_1   320: uint32 q[4][16 columns], then d[16], m[16], IEEE half. Nibble t (bits 4t) of word g of a column is
//                the value of pair 8 (g / 2) + t, of its first input where g is even, of its second where g is odd.
//   kF32   64 bytes an input: [16 columns] float (no tiles, no padding of k)
// Values: kQ8_0 w = d * q; kQ4_1 w = fma(d, q, m); both rounded to bfloat16 where a bf16 product reads them, and zero
// is always +0. kF32 is rounded too where a bf16 product reads it.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels.h"

namespace octavo {

// Types of rows as they lie in files (GGUF's block formats; plain rows for the float types).
enum class SourceType : int32_t { kF32 = 0, kF16 = 1, kBf16 = 2, kQ8_0 = 3, kQ4_1 = 4 };

// Bytes of one source row of k values; k must be a multiple of 32 for the quantised types.
size_t source_row_bytes(SourceType type, int64_t k);
// Bytes of a packed matrix.
size_t packed_bytes(WeightKind kind, int64_t n, int64_t k);
// Whether `type` can be packed as `kind`: any type to kF32; F32, F16 and BF16 to kBf16 (rounded to nearest even);
// Q8_0 to kQ8_0; Q4_1 to kQ4_1.
bool can_pack(SourceType type, WeightKind kind);
// Packs n rows of k values, contiguous at `src`, to `dst` (packed_bytes, 64-byte aligned). Throws
// std::invalid_argument where a quantised block's scale or minimum is not finite, or the types do not fit.
void pack(SourceType type, WeightKind kind, int64_t n, int64_t k, const uint8_t* src, uint8_t* dst);
// Expands to float [n, k]: the values as a bf16 product reads them, or unrounded.
void unpack(WeightKind kind, int64_t n, int64_t k, const uint8_t* packed, float* dst, bool rounded = true);

}  // namespace octavo
