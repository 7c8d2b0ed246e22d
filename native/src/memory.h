// Memory on huge pages: anonymous and zeroed, or a file's bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace octavo {

// A mapping, unmapped when it goes out of scope.
class Mapping {
 public:
  Mapping() = default;
  // Zeroed memory; pages appear when first touched. Throws std::bad_alloc.
  static Mapping zeroed(size_t bytes);
  // Bytes [offset, offset + length) of a file, read-only; a copy where the file system gives no huge pages.
  // Throws std::invalid_argument where the file is shorter, std::system_error where it cannot be read.
  static Mapping file(const std::string& path, int64_t offset, int64_t length);
  Mapping(Mapping&& other) noexcept { swap(other); }
  Mapping& operator=(Mapping&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Mapping();

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void swap(Mapping& other) noexcept;
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
  void* base_ = nullptr;  // what is unmapped
  size_t mapped_ = 0;
};

}  // namespace octavo
