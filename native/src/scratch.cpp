// Scratch memory of a thread (kernels.h): its size is bounded by the ops' block sizes, never by the number of rows.
#include <cstdlib>
#include <new>

#include "kernels.h"

namespace octavo {
namespace {

struct Block {
  void* data = nullptr;
  size_t size = 0;
  ~Block() { std::free(data); }
};

thread_local Block block;

}  // namespace

void* thread_scratch(size_t bytes) {
  if (bytes > block.size) {
    std::free(block.data);
    block.size = (bytes + 4095) / 4096 * 4096;
    block.data = std::aligned_alloc(4096, block.size);
    if (!block.data) {
      block.size = 0;
      throw std::bad_alloc();
    }
  }
  return block.data;
}

}  // namespace octavo
