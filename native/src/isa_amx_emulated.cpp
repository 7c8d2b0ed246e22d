// Kernels for "amx-emulated": what the AMX kernels compute, with tiles emulated on AVX2. For tests; never chosen.
// System headers come first: below them all is inside an anonymous namespace.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels.h"

#define OCTAVO_AMX 1
#define OCTAVO_AMX_EMULATE 1

namespace octavo {
namespace {
#include "isa/vec_avx2.h"
#include "kernels/all.inl"
}  // namespace

const Kernels kKernelsAmxEmulated = {"amx-emulated", k_embed,      k_rms_norm,  k_linear, k_activate, k_gather, k_moe,
                                     k_gated_add,    k_rope_store, k_attention, k_sample, k_enter,    k_leave};

}  // namespace octavo
