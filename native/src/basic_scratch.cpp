#include "kernels.h"
namespace octavo {
size_t attention_scratch_bytes(int, int, int, int, int, bool) { return 64; }
}  // namespace octavo
