// Kernels for "amx". System headers come first: below them all is inside an anonymous namespace, so that no
// function compiled for this instruction set is shared with code that runs on older machines.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels.h"

#define OCTAVO_AMX 1

namespace octavo {
namespace {
#include "isa/vec_avx512.h"
#include "kernels/all.inl"
}  // namespace

const Kernels kKernelsAmx = {"amx",       k_embed,      k_rms_norm,  k_linear, k_activate, k_gather, k_moe,
                             k_gated_add, k_rope_store, k_attention, k_sample, k_enter,    k_leave};

}  // namespace octavo
