// The op set of the CPU back end: one argument struct an op, and one table of functions an instruction set.
// The arithmetic of every op is fixed in docs/numerics.md; tables differ in speed alone.
//
// Rows are tokens of the step, or the rows that need logits. `ld` is a row's stride in elements. Activations
// that enter a matrix product are bfloat16 (uint16_t) on the bf16 path and float on the float32 path; the
// residual stream, products' outputs and logits are always float.
#pragma once
#include <cstddef>
#include <cstdint>

#include "moe_layout.h"
#include "team.h"

namespace octavo {

// In the order of formats.h. kG4 and kG8 are the neutral rows of quantised safetensors (pack.h).
enum class WeightKind : int32_t {
  kBf16,
  kQ8_0,
  kQ4_1,
  kF32,
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
constexpr int kWeightKinds = 16;

// A packed matrix of n output columns by k inputs. Column blocks of 16, each a run of tiles of 32 inputs
// (kF32: of single inputs); see pack.h for the bytes of a tile. n is padded to 16 and k to 32 with zeros.
struct PackedWeight {
  WeightKind kind;
  int32_t n;
  int32_t k;
  const uint8_t* data;
};

struct EmbedArgs {
  const PackedWeight* weight;  // n = vocabulary, k = hidden
  const int32_t* ids;          // [rows]
  float* dst;                  // [rows, ld]
  int32_t rows, ld;
  bool f32 = false;            // float32 path: values not rounded to bf16
  float scale = 1.0f;          // 1: not multiplied
};

struct NormArgs {
  const float* src;     // [rows, ld_src]
  const float* weight;  // [cols]
  void* dst;            // [rows, ld_dst] bf16 or float
  int32_t rows, cols, ld_src, ld_dst;
  float eps;
  bool dst_f32;
  const float* residual = nullptr;  // [rows, ld_dst], added to the norm of a float dst, which may be residual
};

// Norms of parts of a row, in place: q_parts of q_cols values side by side, then k_parts of k_cols.
struct QkNormArgs {
  float* qkv;  // [rows, ld]
  const float *q_weight, *k_weight;
  int32_t rows, ld, q_parts, q_cols, k_parts, k_cols;
  float eps;
};

struct CastArgs {
  const float* src;  // [rows, ld_src]
  void* dst;         // [rows, ld_dst] bf16 or float
  int32_t rows, cols, ld_src, ld_dst;
  bool dst_f32;
};

struct SoftcapArgs {  // x = cap tanh(x / cap)
  float* x;           // [rows, ld]
  int32_t rows, cols, ld;
  float cap;
};

// dst = (src x weight (+ bias)) * scale (+ residual). dst may be residual.
struct LinearArgs {
  const PackedWeight* weight;
  const void* src;        // [rows, ld_src] bf16, or float where src_f32; columns k .. roundup(k, 32) are zero
  const float* bias;      // [n] or null
  const float* residual;  // [rows, ld_dst] or null
  float* dst;             // [rows, ld_dst]; already offset to this weight's first column
  int32_t rows, ld_src, ld_dst;
  bool src_f32;
  float scale = 1.0f;   // 1: not multiplied
  bool integer = false; // quantised weights are multiplied as integers
  // A team of several converts rows there (integer_bytes()), if they are not converted for this kind already.
  void* converted = nullptr;
  bool is_converted = false;
};

struct ActArgs {  // dst = act(src[:, 0:cols]) * src[:, cols:2 cols]
  const float* src;  // [rows, ld_src]
  void* dst;         // [rows, ld_dst] bf16 or float
  int32_t rows, cols, ld_src, ld_dst;
  bool dst_f32;
  int32_t act;  // 0 silu, 1 gelu (tanh form)
};

// dst = residual + the sum over slots of probability x expert's output. Each expert is (gate, up, down).
struct MoeArgs {
  const PackedWeight* router;   // n = experts, k = hidden
  const PackedWeight* experts;  // [router n][3]
  const void* src;              // as LinearArgs::src
  const float* residual;        // [rows, ld_dst] or null; dst may be residual
  float* dst;
  int32_t rows, ld_src, ld_dst, top_k;
  int32_t chunk;  // rows at once: those of `scratch`
  int32_t act;    // as ActArgs::act
  bool renormalise, f32, integer;
  MoeScratch scratch;
};

struct GatedAddArgs {  // dst += sigmoid(gate) * src
  const float* src;    // [rows, ld_src]
  const float* gate;   // [rows, ld_gate], one column
  float* dst;          // [rows, ld_dst]
  int32_t rows, cols, ld_src, ld_gate, ld_dst;
};

struct GatherArgs {
  const float* src;       // [*, ld_src]
  const int32_t* index;   // [rows]
  float* dst;             // [rows, ld_dst]
  int32_t rows, cols, ld_src, ld_dst;
};

// One sequence's rows in the step: rows [row, row + count), positions [start, start + count).
struct SeqRun {
  int32_t row, count, start;
  int32_t store_from;         // positions below this are not stored
  const int32_t* block_table; // block ids, block i holds positions [i block_size, (i + 1) block_size)
  int32_t shared = 0;         // its first partitions that SharedRuns compute
  int64_t slot = 0;           // where they do: (row, partition) pairs of the sequences before it that share
};

// A row of the step by its sequence.
struct SharedRow {
  int32_t seq, row;
};
// Rows shared_rows[first .. first + count), whose sequences' tables name the same blocks in the partitions [from, to):
// these are computed once for all of them. Every row lies behind them.
struct SharedRun {
  int32_t first, count, from, to;
};

// Shape of the pages of one group, and where one layer's lie. The unit is a tile: 32 positions of one KV head.
// bf16: K, [2 halves][dk / 2 pairs][16 positions][2], then V, [dv / 16][16 pairs][16 dims][2], with
// dk = roundup(head_dim, 32), dv = roundup(head_dim, 16), padding zero. float32: K, [2 halves][head_dim][16],
// then V, [32][head_dim].
struct KVLayer {
  uint8_t* base;         // the pool, already offset to this layer
  int64_t block_stride;  // bytes from one block to the next
  int64_t head_stride;   // bytes from one KV head to the next within a block and layer
  int64_t tile_stride;   // bytes from one tile of 32 positions to the next
  int32_t block_size;    // positions a block, a multiple of 32
  int32_t head_dim;
  int32_t kv_heads;
  bool f32;
};

// Rotates q and k in pairs (i, i + rotary / 2), writes q to dst and k, v into the pages. Writing the first
// position of a tile first clears the whole tile, so a page never shows what an earlier owner left.
struct RopeStoreArgs {
  const float* qkv;         // [rows, ld_qkv]: q heads, then k heads, then v heads
  void* dst_q;              // [rows, ld_q] bf16 or float (kv.f32): head h at h * dq, dq = roundup(head_dim, 32) on the
                            // bf16 path (padding zero), head_dim on the float32 path
  const float* cos;         // [positions, rotary / 2]; null where rotary is 0, which copies
  const float* sin;
  const SeqRun* seqs;
  int32_t num_seqs, q_heads, rotary, ld_qkv, ld_q;
  KVLayer kv;
};

struct AttentionArgs {
  const void* q;     // as RopeStoreArgs::dst_q
  void* dst;         // [rows, ld_dst] bf16 or float: head h at h * head_dim; the caller clears the columns beyond
  const SeqRun* seqs;
  int32_t num_seqs, q_heads, ld_q, ld_dst;
  float scale;
  int32_t window;    // 0: full; else a row sees its last `window` positions, itself among them
  float softcap;     // 0: off
  const float* sinks;  // [q_heads], null: off
  bool naive;        // the three-step product
  uint8_t* scratch;  // attention_scratch_bytes() of memory shared by the team
  KVLayer kv;
  const SharedRun* shared = nullptr;  // tiled attention without a window obeys them
  const SharedRow* shared_rows = nullptr;
  int32_t num_shared = 0;
};

// One row of logits to draw from. Pointers may be null where noted.
struct SampleRow {
  float temperature;         // 0: greedy
  float top_p, min_p;
  int32_t top_k;             // 0: off
  float repetition, presence, frequency;
  uint64_t seed;
  int32_t position, choice;  // noise counter: absolute position of the token drawn, index within n
  const int32_t* prompt_counts;  // [vocab] or null
  const int32_t* output_counts;  // [vocab] or null
  const int32_t* bias_ids;       // [num_bias]
  const float* bias_values;
  int32_t num_bias;
  const int32_t* banned;         // ids that cannot be drawn
  int32_t num_banned;
  const uint32_t* mask;          // [vocab / 32] bit set = allowed, or null
  int32_t num_logprobs;          // -1: none; else alternatives wanted (0..kMaxLogprobs)
  int32_t given;                 // -1: draw; else the token is this one, and its rank is found too
};

constexpr int32_t kMaxLogprobs = 32;

struct SampleOut {
  int32_t token;     // -1: the row's logits hold a NaN or no token is allowed
  float logprob;     // of `token` under the raw distribution, where num_logprobs >= 0
  int32_t rank;      // of a given token: 1 + how many come before it, ties by lowest id; else 0
  int32_t top_ids[kMaxLogprobs];
  float top_logprobs[kMaxLogprobs];
};

struct SampleArgs {
  const float* logits;  // [rows, ld]
  int32_t rows, ld;
  int32_t vocab;        // ids drawn are below this
  const SampleRow* params;
  SampleOut* out;
  float* scratch;       // [team size, 2 * roundup(vocab, 16)] floats
};

// At least `bytes` of memory of the calling thread, 64-byte aligned, for the length of one op: grown on demand, kept,
// freed when the thread ends. The thread's next call may move it.
void* thread_scratch(size_t bytes);

struct Kernels {
  const char* name;
  void (*embed)(const EmbedArgs&, const Team&);
  void (*rms_norm)(const NormArgs&, const Team&);
  void (*linear)(const LinearArgs&, const Team&);
  void (*activate)(const ActArgs&, const Team&);
  void (*gather)(const GatherArgs&, const Team&);
  void (*moe)(const MoeArgs&, const Team&);
  void (*gated_add)(const GatedAddArgs&, const Team&);
  void (*rope_store)(const RopeStoreArgs&, const Team&);
  void (*attention)(const AttentionArgs&, const Team&);
  void (*sample)(const SampleArgs&, const Team&);
  void (*qk_norm)(const QkNormArgs&, const Team&);
  void (*cast)(const CastArgs&, const Team&);
  void (*softcap)(const SoftcapArgs&, const Team&);
  // Measurements of the machine (rates.h); no arithmetic of the contract.
  uint64_t (*limit_read)(const uint8_t* data, size_t bytes);
  double (*limit_multiply_add)(int64_t rounds, float* sink);
  // Called by each thread before its first and after its last op of a step (tile configuration, MXCSR).
  void (*enter)();
  void (*leave)();
};

// Bytes of LinearArgs::converted for rows of k inputs.
static constexpr size_t integer_bytes(int64_t rows, int64_t k) { return (size_t)(rows * (k / 32) * 64); }

// Bytes of AttentionArgs::scratch for a team of `threads` and contexts up to `max_positions`.
size_t attention_scratch_bytes(int threads, int max_positions, int q_heads, int head_dim, int max_rows, bool naive);

extern const Kernels kKernelsPortable;
#if defined(__x86_64__)
extern const Kernels kKernelsAvx2;
extern const Kernels kKernelsAvx512;
extern const Kernels kKernelsAmx;
extern const Kernels kKernelsAmxEmulated;  // for tests: AMX code on AVX2, tiles emulated
#endif

}  // namespace octavo
