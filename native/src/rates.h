// Measured limits of the machine: bytes read and floating-point operations a second, all threads together.
#pragma once
#include <cstddef>

#include "kernels.h"

namespace octavo {

// The best of several passes over a buffer of `bytes`, divided among `threads`.
double read_rate(const Kernels& kernels, int threads, size_t bytes);
double multiply_add_rate(const Kernels& kernels, int threads);

}  // namespace octavo
