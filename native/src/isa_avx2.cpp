// Kernels for "avx2". System headers come first: below them all is inside an anonymous namespace, so that no
// function compiled for this instruction set is shared with code that runs on older machines.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "formats.h"
#include "kernels.h"

#define OCTAVO_AMX 0

namespace octavo {
namespace {
#include "isa/vec_avx2.h"
#include "kernels/all.inl"
}  // namespace

const Kernels kKernelsAvx2 = OCT_KERNEL_TABLE("avx2");

}  // namespace octavo
