#include "memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace octavo {
namespace {

constexpr size_t kHuge = size_t{2} << 20;
constexpr size_t kPage = 4096;
constexpr int kCollapse = 25;  // MADV_COLLAPSE, absent from older headers

size_t round_to(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

struct File {
  int fd;
  explicit File(const std::string& path) : fd(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd < 0) throw std::system_error(errno, std::generic_category(), path);
  }
  ~File() { close(fd); }
};

void read_whole(int fd, uint8_t* dst, size_t length, int64_t offset, const std::string& path) {
  while (length > 0) {
    const ssize_t got = pread(fd, dst, length, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw std::system_error(errno, std::generic_category(), path);
    if (got == 0) throw std::invalid_argument(path + " became shorter while it was read");
    dst += got;
    length -= (size_t)got;
    offset += got;
  }
}

}  // namespace

void Mapping::swap(Mapping& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(base_, other.base_);
  std::swap(mapped_, other.mapped_);
}

Mapping::~Mapping() {
  if (base_) munmap(base_, mapped_);
}

Mapping Mapping::zeroed(size_t bytes) {
  Mapping m;
  const bool huge = bytes >= kHuge;
  m.mapped_ = round_to(bytes ? bytes : 1, kPage) + (huge ? kHuge : 0);
  void* p = mmap(nullptr, m.mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    m.mapped_ = 0;
    throw std::bad_alloc();
  }
  m.base_ = p;
  m.data_ = huge ? (uint8_t*)round_to((size_t)p, kHuge) : (uint8_t*)p;
  m.size_ = bytes;
  if (huge) madvise(m.data_, bytes, MADV_HUGEPAGE);
  return m;
}

Mapping Mapping::file(const std::string& path, int64_t offset, int64_t length) {
  const File file(path);
  struct stat info;
  if (fstat(file.fd, &info) != 0) throw std::system_error(errno, std::generic_category(), path);
  if (offset < 0 || length < 0 || offset > info.st_size || length > info.st_size - offset) {
    throw std::invalid_argument(path + " holds " + std::to_string(info.st_size) + " bytes; " + std::to_string(length) +
                                " at offset " + std::to_string(offset) + " were asked for");
  }
  if (length < (int64_t)kHuge) {
    Mapping copy = zeroed((size_t)length);
    read_whole(file.fd, copy.data_, (size_t)length, offset, path);
    return copy;
  }
  // Huge pages need address and file offset to agree modulo 2 MB.
  const int64_t start = offset / (int64_t)kHuge * (int64_t)kHuge;
  const size_t span = (size_t)(offset - start + length);
  Mapping m;
  m.mapped_ = span + 2 * kHuge;
  void* p = mmap(nullptr, m.mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    m.mapped_ = 0;
    throw std::bad_alloc();
  }
  m.base_ = p;
  uint8_t* aligned = (uint8_t*)round_to((size_t)p, kHuge);
  if (mmap(aligned, span, PROT_READ, MAP_PRIVATE | MAP_FIXED, file.fd, start) == MAP_FAILED) {
    throw std::system_error(errno, std::generic_category(), path);
  }
  m.data_ = aligned + (offset - start);
  m.size_ = (size_t)length;
  // Collapsing reads the file in; a kernel without huge file pages says so at once.
  if (madvise(aligned, span, MADV_HUGEPAGE) == 0 && madvise(aligned, span, kCollapse) == 0) return m;
  Mapping copy = zeroed((size_t)length);
  read_whole(file.fd, copy.data_, (size_t)length, offset, path);
  return copy;
}

}  // namespace octavo
