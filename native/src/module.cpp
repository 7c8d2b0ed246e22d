// The Python module: machine, packing, memory and pages. The program is bound in module_program.cpp.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <system_error>

#include "bindings.h"
#include "checksum.h"
#include "cpu.h"
#include "rates.h"
#include "memory.h"

namespace octavo {
namespace {

size_t row_bytes(const std::string& source, int64_t k) {
  check_shape(1, k);
  return source_row_bytes(source_type(source), k);
}

void pack_buffer(const std::string& source, const std::string& kind, int64_t n, int64_t k, nb::object src,
                 nb::object dst, int64_t first_row) {
  const WeightKind to = weight_kind(kind);
  check_shape(n, k);
  if (!can_pack(source_type(source), to)) throw std::invalid_argument(source + " cannot be packed as " + kind);
  const BufferView from(src, false, "src"), into(dst, true, "dst");
  from.need((int64_t)row_bytes(source, k) * n, "src");
  into.need((int64_t)packed_bytes(to, n, k), "dst");
  const nb::gil_scoped_release release;
  pack(source_type(source), to, n, k, from.data(), into.data(), first_row);
}

void unpack_buffer(const std::string& kind, int64_t n, int64_t k, nb::object packed, nb::object dst, bool rounded) {
  const WeightKind from = weight_kind(kind);
  check_shape(n, k);
  const BufferView src(packed, false, "packed"), into(dst, true, "dst");
  src.need((int64_t)packed_bytes(from, n, k), "packed");
  into.need(n * k * 4, "dst");
  const nb::gil_scoped_release release;
  unpack(from, n, k, src.data(), (float*)into.data(), rounded);
}

using Bytes = nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>, nb::c_contig>;

Bytes map_arena(const std::string& path, int64_t offset, int64_t length) {
  auto* mapping = new Mapping();
  const nb::capsule owner(mapping, [](void* p) noexcept { delete (Mapping*)p; });
  {
    const nb::gil_scoped_release release;
    *mapping = Mapping::file(path, offset, length);
  }
  const size_t shape[1] = {mapping->size()};
  return Bytes(mapping->data(), 1, shape, owner);
}

uint64_t checksum_buffer(nb::object data) {
  const BufferView view(data, false, "data");
  const nb::gil_scoped_release release;
  return checksum(view.data(), (size_t)view.size());
}

void read_pool(const KVPool& pool, int layer, int block, nb::object key, nb::object value) {
  const BufferView k(key, true, "key"), v(value, true, "value");
  const int64_t bytes = (int64_t)pool.block_size * pool.kv_heads * pool.head_dim * 4;
  k.need(bytes, "key");
  v.need(bytes, "value");
  pool.read(layer, block, (float*)k.data(), (float*)v.data());
}

void export_block(const KVPool& pool, int block, nb::object dst) {
  const BufferView into(dst, true, "dst");
  into.need(pool.wire_bytes(), "dst");
  const nb::gil_scoped_release release;
  pool.export_block(block, into.data());
}

void import_block(KVPool& pool, int block, nb::object src) {
  const BufferView from(src, false, "src");
  from.need(pool.wire_bytes(), "src");
  const nb::gil_scoped_release release;
  pool.import_block(block, from.data());
}

const Kernels& usable_kernels(const std::string& isa, int threads) {
  const Kernels* kernels = find_kernels(isa);
  if (!kernels) throw std::invalid_argument("instruction set " + isa + " is not available on this machine");
  if (threads < 1 || threads > 1024) throw std::invalid_argument("threads must lie between 1 and 1024");
  return *kernels;
}

void translate_os_error(const std::exception_ptr& error, void*) {
  try {
    std::rethrow_exception(error);
  } catch (const std::system_error& e) {
    errno = e.code().value();
    PyErr_SetFromErrnoWithFilename(PyExc_OSError, nullptr);
    PyErr_SetString(PyExc_OSError, e.what());
  }
}

}  // namespace

static const char* const kKindNames[kWeightKinds] = {"bf16", "q8_0", "q4_1", "f32",  "q4_0", "q5_0",   "q5_1",   "q2_k",
                                                     "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "g4", "g8"};

WeightKind weight_kind(const std::string& name) {
  std::string known;
  for (int i = 0; i < kWeightKinds; i++) {
    if (name == kKindNames[i]) return (WeightKind)i;
    known += (i ? ", " : "") + std::string(kKindNames[i]);
  }
  throw std::invalid_argument("unknown weight kind " + name + "; known are " + known);
}

const char* kind_name(WeightKind kind) { return kKindNames[(int)kind]; }

void check_shape(int64_t n, int64_t k) {
  constexpr int64_t most = int64_t{1} << 28;
  if (n < 1 || k < 1 || n > most || k > most) throw std::invalid_argument("n and k must lie between 1 and 2^28");
}

Weight::Weight(nb::object owner, int64_t offset, const std::string& kind, int64_t n, int64_t k) {
  ref.is_vector = kind == "vector";
  ref.packed.kind = ref.is_vector ? WeightKind::kF32 : weight_kind(kind);
  check_shape(n, k);
  if (ref.is_vector && n != 1) throw std::invalid_argument("a vector has n = 1");
  ref.packed.n = (int32_t)n;
  ref.packed.k = (int32_t)k;
  auto view = std::make_shared<BufferView>(owner, false, "owner");
  if (offset < 0 || offset % 64) throw std::invalid_argument("offset must be a multiple of 64");
  view->need(offset + (ref.vector() ? 4 * k : (int64_t)packed_bytes(ref.packed.kind, n, k)), "owner");
  ref.packed.data = view->data() + offset;
  ref.owner = std::move(view);
}

}  // namespace octavo

NB_MODULE(_native, m) {
  using namespace octavo;
  using namespace nb::literals;
  // Objects that are still referenced when the interpreter ends are the process's to free, and nothing for a user to
  // read.
  nb::set_leak_warnings(false);
  nb::register_exception_translator(translate_os_error);
  m.def("isas", &usable_isas);
  m.def("cpu_count", &cpu_count, "prefix"_a = "");
  m.def("source_row_bytes", &row_bytes, "source"_a, "k"_a);
  m.def(
      "packed_bytes",
      [](const std::string& kind, int64_t n, int64_t k) {
        check_shape(n, k);
        return packed_bytes(weight_kind(kind), n, k);
      },
      "kind"_a, "n"_a, "k"_a);
  m.def(
      "can_pack",
      [](const std::string& source, const std::string& kind) {
        return can_pack(source_type(source), weight_kind(kind));
      },
      "source"_a, "kind"_a);
  m.def("pack", &pack_buffer, "source"_a, "kind"_a, "n"_a, "k"_a, "src"_a, "dst"_a,
        "first_row"_a = 0);
  m.def("unpack", &unpack_buffer, "kind"_a, "n"_a, "k"_a, "packed"_a, "dst"_a, "rounded"_a = true);
  m.def("map_arena", &map_arena, "path"_a, "offset"_a, "length"_a);
  m.def("checksum", &checksum_buffer, "data"_a);
  m.def(
      "read_rate",
      [](const std::string& isa, int threads, size_t bytes) {
        const Kernels& kernels = usable_kernels(isa, threads);
        if (bytes < 4096 || bytes > size_t{1} << 36)
          throw std::invalid_argument("bytes must lie between 4096 and 2^36");
        const nb::gil_scoped_release release;
        return read_rate(kernels, threads, bytes);
      },
      "isa"_a, "threads"_a, "bytes"_a);
  m.def(
      "multiply_add_rate",
      [](const std::string& isa, int threads) {
        const Kernels& kernels = usable_kernels(isa, threads);
        const nb::gil_scoped_release release;
        return multiply_add_rate(kernels, threads);
      },
      "isa"_a, "threads"_a);

  nb::class_<Weight>(m, "Weight")
      .def(nb::init<nb::object, int64_t, const std::string&, int64_t, int64_t>(), "owner"_a, "offset"_a, "kind"_a,
           "n"_a, "k"_a)
      .def_prop_ro("kind", [](const Weight& w) { return w.ref.is_vector ? "vector" : kind_name(w.ref.packed.kind); })
      .def_prop_ro("n", [](const Weight& w) { return w.ref.packed.n; })
      .def_prop_ro("k", [](const Weight& w) { return w.ref.packed.k; });

  nb::class_<KVPool>(m, "KVPool")
      .def(nb::init<int, int, int, int, int, bool>(), "num_blocks"_a, "block_size"_a, "layers"_a, "kv_heads"_a,
           "head_dim"_a, "float32"_a)
      .def_prop_ro("bytes", &KVPool::bytes)
      .def_static(
          "bytes_per_token",
          [](int layers, int kv_heads, int head_dim, bool f32) {
            return KVPool::tile_bytes(head_dim, f32) * layers * kv_heads / 32;
          },
          "layers"_a, "kv_heads"_a, "head_dim"_a, "float32"_a)
      .def("read", &read_pool, "layer"_a, "block"_a, "key"_a, "value"_a)
      .def_prop_ro("wire_bytes", &KVPool::wire_bytes)
      .def("export_block", &export_block, "block"_a, "dst"_a)
      .def("import_block", &import_block, "block"_a, "src"_a)
      .def("fill", &KVPool::fill, "value"_a);
  bind_program(m);
}
