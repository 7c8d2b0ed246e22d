// Kernels for "amx". System headers come first: below them all is inside an anonymous namespace, so that no
// function compiled for this instruction set is shared with code that runs on older machines.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "formats.h"
#include "kernels.h"

#define OCTAVO_AMX 1

namespace octavo {
namespace {
#include "isa/vec_avx512.h"
#include "kernels/all.inl"
}  // namespace

const Kernels kKernelsAmx = OCT_KERNEL_TABLE("amx");

}  // namespace octavo
