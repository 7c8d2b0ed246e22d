// Every kernel, in the order of their dependence. Included by each per-ISA file.
#include "kernels/math.inl"

#include "kernels/elementwise.inl"
#include "kernels/rope_store.inl"

#include "kernels/formats.inl"
#include "kernels/expand.inl"
#include "kernels/embed.inl"
#include "kernels/linear.inl"
#if OCTAVO_AMX
#include "kernels/amx_tiles.inl"
#include "kernels/amx.inl"
#endif
#include "kernels/moe.inl"
#include "kernels/attention.inl"
#include "kernels/sampler.inl"
#include "kernels/rates.inl"

// Tiles are configured by the ops that use them and released at the end of a step.
static void k_enter() {}
static void k_leave() {
#if OCTAVO_AMX
  tile_release();
#endif
}

// The table of the instruction set that includes this file.
#define OCT_KERNEL_TABLE(isa)  \
  {.name = isa,                \
   .embed = k_embed,           \
   .rms_norm = k_rms_norm,     \
   .linear = k_linear,         \
   .activate = k_activate,     \
   .gather = k_gather,         \
   .moe = k_moe,               \
   .gated_add = k_gated_add,   \
   .rope_store = k_rope_store, \
   .attention = k_attention,   \
   .sample = k_sample,         \
   .qk_norm = k_qk_norm,       \
   .cast = k_cast,             \
   .softcap = k_softcap,       \
   .limit_read = k_limit_read, \
   .limit_multiply_add = k_limit_multiply_add, \
   .enter = k_enter,           \
   .leave = k_leave}
