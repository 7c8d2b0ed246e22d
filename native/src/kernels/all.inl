// Every kernel, in the order of their dependence. Included by each per-ISA file.
#include "kernels/math.inl"

#include "kernels/elementwise.inl"
#include "kernels/rope_store.inl"

#include "kernels/expand.inl"
#include "kernels/embed.inl"
#include "kernels/linear.inl"
#if OCTAVO_AMX && __has_include("kernels/amx.inl")
#include "kernels/amx.inl"
#endif
#if __has_include("kernels/attention.inl")
#include "kernels/attention.inl"
#else
#include "kernels/basic_attention.inl"
#endif
#if __has_include("kernels/sampler.inl")
#include "kernels/sampler.inl"
#else
#include "kernels/basic_sampler.inl"
#endif

// Tiles are configured by the ops that use them and released at the end of a step.
static void k_enter() {}
static void k_leave() {
#if OCTAVO_AMX
  _tile_release();
#endif
}
