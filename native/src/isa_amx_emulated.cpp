// Kernels for "amx-emulated": what the AMX kernels compute, with tiles emulated on AVX2. For tests; never chosen.
// System headers come first: below them all is inside an anonymous namespace.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "formats.h"
#include "kernels.h"

#define OCTAVO_AMX 1
#define OCTAVO_AMX_EMULATE 1

namespace octavo {
namespace {
#include "isa/vec_avx2.h"
#include "kernels/all.inl"
}  // namespace

const Kernels kKernelsAmxEmulated = OCT_KERNEL_TABLE("amx-emulated");

}  // namespace octavo
