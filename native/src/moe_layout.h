// Memory of the moe op, shared by its kernels (kernels/moe.inl) and the program that owns it (moe.cpp). Plain data and
// macros alone: nothing here may become an inline symbol of a per-ISA file.
#pragma once
#include <cstddef>
#include <cstdint>

#define OCT_MOE_ROWS 128     // rows of one expert in a unit of work, at most
#define OCT_MOE_COLUMNS 128  // columns of one matrix in a unit of work, at most

namespace octavo {

// A run of one expert's pairs.
struct MoeBlock {
  int32_t expert, first, rows;
};

// A pair is (row, slot): a row of the chunk with one of the experts that it chose. `place` gives where a pair lies
// among the pairs grouped by expert; the arrays that products read and write are in that order.
struct MoeScratch {
  float* scores;        // [rows, roundup(experts, 16)]: logits, then probabilities
  float* weights;       // [rows, top_k]
  int32_t* ids;         // [rows, top_k]
  int32_t* place;       // [rows, top_k]
  int32_t* source;      // [pairs]: the row of a grouped pair
  int32_t* ends;        // [experts + 1]: where an expert's pairs end
  MoeBlock* blocks;     // [experts + pairs / OCT_MOE_ROWS + 1]
  int32_t* num_blocks;  // [1]
  void* gathered;       // [pairs, roundup(hidden, 32)] bf16 or float
  void* inner;          // [pairs, roundup(inner, 32)] bf16 or float
  float* out;           // [pairs, hidden]
  float* own;           // [threads, OCT_MOE_ROWS, 2 OCT_MOE_COLUMNS]
};

struct MoeShape {
  int64_t threads, rows, experts, top_k, hidden, inner;  // rows: of a chunk
  bool f32;
};

// Rows that go through at once: all of them, or as many as keep the memory within bounds.
int64_t moe_chunk_rows(const MoeShape& shape);
// The arrays from `base` on; returns how many bytes they take (`base` may be null).
size_t moe_layout(const MoeShape& shape, uint8_t* base, MoeScratch* scratch);

}  // namespace octavo
