// Packed weights: the layout that kernels read. Column blocks of 16 outputs; within a block, tiles of 32 inputs
// in ascending order. A tile's bytes:
//   kBf16  1024: [16 pairs of inputs][16 columns][2] bfloat16
//   kQ8_0   544: int8 q[16 pairs][16 columns][2], then the columns' scales d[16], IEEE half
//   kQ4_1   320: nibbles q[8][32], then d[16], m[16], IEEE half. Byte j of row r holds, for column j / 2 and
//                side j % 2 of a pair, the value of pair r in its low half and of pair r + 8 in its high half.
//   kF32   64 bytes an input: [16 columns] float (no tiles, no padding of k)
// Values: kQ8_0 w = d * q; kQ4_1 w = fma(d, q, m); both rounded to bfloat16 where a bf16 product reads them.
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
// Packs n rows of k values, contiguous at `src`, to `dst` (packed_bytes, 64-byte aligned).
void pack(SourceType type, WeightKind kind, int64_t n, int64_t k, const uint8_t* src, uint8_t* dst);

}  // namespace octavo
