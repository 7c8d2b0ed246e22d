// What the two binding files share: views of Python buffers, and Weight.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "pack.h"
#include "program.h"

namespace octavo {

namespace nb = nanobind;

// The bytes of any contiguous Python buffer, held until it goes out of scope (with the GIL).
class BufferView {
 public:
  BufferView(nb::handle object, bool writable, const char* what) {
    const int flags = writable ? PyBUF_WRITABLE : PyBUF_SIMPLE;
    if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) {
      PyErr_Clear();
      throw std::invalid_argument(std::string(what) + " must be a contiguous " + (writable ? "writable " : "") +
                                  "buffer");
    }
  }
  ~BufferView() { PyBuffer_Release(&view_); }
  BufferView(const BufferView&) = delete;
  BufferView& operator=(const BufferView&) = delete;
  uint8_t* data() const { return (uint8_t*)view_.buf; }
  int64_t size() const { return (int64_t)view_.len; }
  void need(int64_t bytes, const char* what) const {
    if (size() < bytes) {
      throw std::invalid_argument(std::string(what) + " holds " + std::to_string(size()) + " bytes; " +
                                  std::to_string(bytes) + " are needed");
    }
  }

 private:
  Py_buffer view_;
};

WeightKind weight_kind(const std::string& name);
const char* kind_name(WeightKind kind);
void check_shape(int64_t n, int64_t k);

// A packed matrix or float vector; the buffer it lies in lives as long as anything that uses it.
class Weight {
 public:
  Weight(nb::object owner, int64_t offset, const std::string& kind, int64_t n, int64_t k);
  WeightRef ref;
};

using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints2 = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Words = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats2 = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void bind_program(nb::module_& m);

}  // namespace octavo
