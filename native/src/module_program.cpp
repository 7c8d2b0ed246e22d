// Python bindings of batches, samples and programs.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <tuple>

#include "bindings.h"
#include "cpu.h"

namespace octavo {
namespace {

using namespace nb::literals;

template <class Array>
std::vector<std::remove_const_t<typename Array::Scalar>> copy(const Array& a) {
  using T = std::remove_const_t<typename Array::Scalar>;
  return std::vector<T>(a.data(), a.data() + a.size());
}

// A SampleSpec with the Python arrays that it points into.
struct Sample {
  SampleSpec spec;
  std::optional<Ints> prompt_counts, output_counts;
  std::optional<Words> mask;

  Sample(float temperature, int top_k, float top_p, float min_p, uint64_t seed, int choice, int num_logprobs) {
    SampleRow& r = spec.row;
    r.temperature = temperature;
    r.top_k = top_k;
    r.top_p = top_p;
    r.min_p = min_p;
    r.seed = seed;
    r.choice = choice;
    r.num_logprobs = num_logprobs;
    r.repetition = 1.0f;
    r.given = -1;
  }

  void set_penalties(float repetition, float presence, float frequency, std::optional<Ints> prompt,
                     std::optional<Ints> output) {
    if (!(repetition > 0)) throw std::invalid_argument("repetition must be above 0");
    spec.row.repetition = repetition;
    spec.row.presence = presence;
    spec.row.frequency = frequency;
    prompt_counts = std::move(prompt);
    output_counts = std::move(output);
    spec.row.prompt_counts = prompt_counts ? prompt_counts->data() : nullptr;
    spec.row.output_counts = output_counts ? output_counts->data() : nullptr;
    spec.prompt_counts_len = prompt_counts ? (int64_t)prompt_counts->size() : 0;
    spec.output_counts_len = output_counts ? (int64_t)output_counts->size() : 0;
  }

  void set_bias(const Ints& ids, const Floats& values) {
    if (ids.size() != values.size()) throw std::invalid_argument("bias needs one value an id");
    spec.bias_ids.assign(ids.data(), ids.data() + ids.size());
    spec.bias_values.assign(values.data(), values.data() + values.size());
  }

  void set_banned(const std::optional<Ints>& ids) {
    spec.banned.clear();
    if (ids) spec.banned.assign(ids->data(), ids->data() + ids->size());
  }

  void set_mask(std::optional<Words> words) {
    mask = std::move(words);
    spec.row.mask = mask ? mask->data() : nullptr;
    spec.mask_len = mask ? (int64_t)mask->size() : 0;
  }
};

struct PyBatch {
  Batch batch;
  std::vector<std::shared_ptr<Sample>> samples;

  void set_tokens(const Ints& ids) { batch.tokens.assign(ids.data(), ids.data() + ids.size()); }

  void set_sequences(const Ints2& seqs, const std::vector<Ints2>& tables) {
    if (seqs.shape(1) != 4) throw std::invalid_argument("seqs must have 4 columns: row, count, start, store_from");
    for (const Ints2& t : tables) {
      if (t.shape(0) != seqs.shape(0)) throw std::invalid_argument("a block table needs one row a sequence");
    }
    batch.sequences.clear();
    batch.shared.clear();
    for (size_t s = 0; s < seqs.shape(0); s++) {
      const int32_t* q = seqs.data() + 4 * s;
      batch.sequences.push_back({q[0], q[1], q[2], q[3]});
    }
    batch.tables.resize(tables.size());
    for (size_t g = 0; g < tables.size(); g++) {
      batch.tables[g].width = (int64_t)tables[g].shape(1);
      batch.tables[g].ids.assign(tables[g].data(), tables[g].data() + tables[g].size());
    }
  }

  // One entry a group: runs (first member, members, from, to), and the members, which are sequences.
  void set_shared(const std::vector<std::pair<Ints2, Ints>>& groups) {
    batch.shared.clear();
    for (const auto& [runs, members] : groups) {
      if (runs.shape(1) != 4) throw std::invalid_argument("shared runs must have 4 columns: first, count, from, to");
      Batch::Shared shared;
      for (size_t i = 0; i < runs.shape(0); i++) {
        const int32_t* r = runs.data() + 4 * i;
        shared.runs.push_back({r[0], r[1], r[2], r[3]});
      }
      shared.members = copy(members);
      batch.shared.push_back(std::move(shared));
    }
  }

  void set_logit_rows(const Ints& rows) { batch.logit_rows.assign(rows.data(), rows.data() + rows.size()); }

  void set_hidden_rows(const Ints& rows) { batch.hidden_rows.assign(rows.data(), rows.data() + rows.size()); }

  void set_samples(std::vector<std::shared_ptr<Sample>> list) {
    batch.samples.clear();
    for (const auto& s : list) {
      if (!s) throw std::invalid_argument("samples must not be None");
      batch.samples.push_back(&s->spec);
    }
    samples = std::move(list);
  }
};

using Rows = nb::ndarray<nb::numpy, float, nb::ndim<2>, nb::c_contig>;

Rows read_buffer(Program& p, int buffer, int64_t rows) {
  const size_t columns = (size_t)p.buffer(buffer).columns;
  if (rows < 0) throw std::invalid_argument("rows must be at least 0");
  auto data = std::make_unique<float[]>((size_t)rows * columns + 1);
  p.read(buffer, rows, data.get());
  float* raw = data.release();
  const nb::capsule owner(raw, [](void* q) noexcept { delete[] (float*)q; });
  const size_t shape[2] = {(size_t)rows, columns};
  return Rows(raw, 2, shape, owner);
}

using Result = std::tuple<int, float, std::vector<int>, std::vector<float>>;

std::vector<Result> results(const Program& p, const std::vector<int>& wanted) {
  std::vector<Result> out;
  for (size_t i = 0; i < p.results().size(); i++) {
    const SampleOut& s = p.results()[i];
    const int n = s.token < 0 ? 0 : std::max(wanted[i], 0);
    out.emplace_back(s.token, s.logprob, std::vector<int>(s.top_ids, s.top_ids + n),
                     std::vector<float>(s.top_logprobs, s.top_logprobs + n));
  }
  return out;
}

std::vector<int> ranks(const Program& p) {
  std::vector<int> out;
  for (const SampleOut& s : p.results()) out.push_back(s.rank);
  return out;
}

// A residual's number; -1 where there is none.
int buffer_or_none(std::optional<int> buffer) {
  if (buffer && *buffer < 0) throw std::invalid_argument("buffer " + std::to_string(*buffer) + " does not exist");
  return buffer.value_or(-1);
}

// A program with how many alternatives each sample of the last run asked for.
struct PyProgram {
  std::unique_ptr<Program> program;
  std::vector<int> wanted;

  PyProgram(const std::string& isa, int threads, int max_rows, int max_logit_rows, int max_positions, bool f32,
            bool naive, std::vector<std::shared_ptr<KVPool>> pools,
            const std::vector<std::pair<Floats2, Floats2>>& tables, bool integer) {
    const Kernels* kernels = find_kernels(isa);
    if (!kernels) {
      std::string known;
      for (const std::string& name : usable_isas()) known += (known.empty() ? "" : ", ") + name;
      throw std::invalid_argument("isa " + isa + " is not available on this machine; it has " + known);
    }
    std::vector<RopeTables> ropes;
    for (const auto& [cos, sin] : tables) {
      if (cos.shape(0) != sin.shape(0) || cos.shape(1) != sin.shape(1)) {
        throw std::invalid_argument("cos and sin of a rotary table must have the same shape");
      }
      ropes.push_back({(int64_t)cos.shape(0), (int64_t)cos.shape(1), cos.data(), sin.data(),
                       std::make_shared<std::pair<Floats2, Floats2>>(cos, sin)});
    }
    const Limits limits{threads, max_rows, max_logit_rows, max_positions, f32, naive, integer};
    for (const auto& pool : pools) {
      if (!pool) throw std::invalid_argument("pools must not hold None");
    }
    program = std::make_unique<Program>(*kernels, limits, std::move(pools), std::move(ropes));
  }

  void remember(const PyBatch& b) {
    wanted.clear();
    for (const auto& s : b.samples) wanted.push_back(s->spec.row.num_logprobs);
  }
  void run(const PyBatch& b) {
    remember(b);
    const nb::gil_scoped_release release;
    program->run(b.batch);
  }
  void run_op(int index, const PyBatch& b) {
    remember(b);
    const nb::gil_scoped_release release;
    program->run_op(index, b.batch);
  }
  void run_from(int index, const PyBatch& b) {
    remember(b);
    const nb::gil_scoped_release release;
    program->run_from(index, b.batch);
  }
  void run_ops(int first, int last, const PyBatch& b) {
    remember(b);
    const nb::gil_scoped_release release;
    program->run_ops(first, last, b.batch);
  }
  int linear(int src, const std::vector<std::shared_ptr<Weight>>& weights, std::shared_ptr<Weight> bias,
             std::optional<int> residual, float scale) {
    std::vector<WeightRef> refs;
    for (const auto& w : weights) {
      if (!w) throw std::invalid_argument("weights must not hold None");
      refs.push_back(w->ref);
    }
    return program->linear(src, std::move(refs), bias ? &bias->ref : nullptr, buffer_or_none(residual), scale);
  }
  int attention(int q, int group, int layer, int q_heads, float scale, std::optional<int> window,
                std::optional<float> softcap, std::shared_ptr<Weight> sinks) {
    if (window && *window < 1) throw std::invalid_argument("window must be at least 1, or None");
    if (softcap && !(*softcap > 0)) throw std::invalid_argument("softcap must be above 0, or None");
    return program->attention(q, group, layer, q_heads, scale, window.value_or(0), softcap.value_or(0.0f),
                              sinks ? &sinks->ref : nullptr);
  }
  int logits(int src, const Weight& weight, float scale, std::optional<float> softcap) {
    const int out = program->linear(src, {weight.ref}, nullptr, -1, scale);
    return softcap ? program->softcap(out, *softcap) : out;
  }
  int moe(int src, const Weight& router, const std::vector<std::vector<std::shared_ptr<Weight>>>& experts, int top_k,
          bool renormalise, const std::string& act, std::optional<int> residual) {
    std::vector<WeightRef> refs;
    for (const auto& expert : experts) {
      if (expert.size() != 3) throw std::invalid_argument("an expert is three weights: gate, up, down");
      for (const auto& w : expert) {
        if (!w) throw std::invalid_argument("experts must not hold None");
        refs.push_back(w->ref);
      }
    }
    if (residual && *residual < 0)
      throw std::invalid_argument("buffer " + std::to_string(*residual) + " does not exist");
    return program->moe(src, router.ref, std::move(refs), {top_k, renormalise, act}, residual.value_or(-1));
  }
  void write(int buffer, const Floats2& values) {
    program->write(buffer, (int64_t)values.shape(0), (int64_t)values.shape(1), values.data());
  }
};

void bind_batch(nb::module_& m) {
  nb::class_<Sample>(m, "Sample")
      .def(nb::init<float, int, float, float, uint64_t, int, int>(), "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a,
           "seed"_a, "choice"_a, "num_logprobs"_a)
      .def_prop_rw(
          "position", [](const Sample& s) { return s.spec.row.position; },
          [](Sample& s, int32_t p) { s.spec.row.position = p; })
      .def_prop_rw(
          "given", [](const Sample& s) { return s.spec.row.given; },
          [](Sample& s, int32_t token) { s.spec.row.given = token; })
      .def("set_penalties", &Sample::set_penalties, "repetition"_a, "presence"_a, "frequency"_a,
           "prompt_counts"_a.none().noconvert(), "output_counts"_a.none().noconvert())
      .def("set_bias", &Sample::set_bias, "ids"_a, "values"_a)
      .def("set_banned", &Sample::set_banned, "ids"_a.none())
      .def("set_mask", &Sample::set_mask, "mask"_a.none().noconvert());
  nb::class_<PyBatch>(m, "Batch")
      .def(nb::init<>())
      .def("set_tokens", &PyBatch::set_tokens, "ids"_a)
      .def("set_sequences", &PyBatch::set_sequences, "seqs"_a, "block_tables"_a)
      .def("set_shared", &PyBatch::set_shared, "groups"_a)
      .def("set_logit_rows", &PyBatch::set_logit_rows, "rows"_a)
      .def("set_hidden_rows", &PyBatch::set_hidden_rows, "rows"_a)
      .def("set_samples", &PyBatch::set_samples, "samples"_a);
}

void bind_recording(nb::class_<PyProgram>& c) {
  c.def(
       "embed", [](PyProgram& p, const Weight& w, float scale) { return p.program->embed(w.ref, scale); }, "weight"_a,
       "scale"_a = 1.0f)
      .def(
          "input", [](PyProgram& p, int64_t columns, bool bf16) { return p.program->input(columns, bf16); },
          "columns"_a, "bf16"_a)
      .def(
          "rms_norm",
          [](PyProgram& p, int src, const Weight& w, float eps, std::optional<int> residual) {
            return p.program->rms_norm(src, w.ref, eps, buffer_or_none(residual));
          },
          "src"_a, "weight"_a, "eps"_a, "residual"_a.none() = nb::none())
      .def(
          "qk_norm",
          [](PyProgram& p, int qkv, int group, int layer, int q_heads, const Weight& q, const Weight& k, float eps) {
            return p.program->qk_norm(qkv, group, layer, q_heads, q.ref, k.ref, eps);
          },
          "qkv"_a, "group"_a, "layer"_a, "q_heads"_a, "q_weight"_a, "k_weight"_a, "eps"_a)
      .def(
          "cast", [](PyProgram& p, int src) { return p.program->cast(src); }, "src"_a)
      .def("linear", &PyProgram::linear, "src"_a, "weights"_a, "bias"_a.none() = nb::none(),
           "residual"_a.none() = nb::none(), "scale"_a = 1.0f)
      .def("moe", &PyProgram::moe, "src"_a, "router"_a, "experts"_a, "top_k"_a, "renormalise"_a, "act"_a,
           "residual"_a.none() = nb::none())
      .def(
          "gated_add",
          [](PyProgram& p, int src, int gate, int residual) { return p.program->gated_add(src, gate, residual); },
          "src"_a, "gate"_a, "residual"_a)
      .def(
          "rope_and_store",
          [](PyProgram& p, int qkv, int group, int layer, int q_heads, std::optional<int> rope) {
            if (rope && *rope < 0) throw std::invalid_argument("rope must be a table's number, or None");
            return p.program->rope_and_store(qkv, group, layer, q_heads, rope.value_or(-1));
          },
          "qkv"_a, "group"_a, "layer"_a, "q_heads"_a, "rope"_a.none() = 0)
      .def("attention", &PyProgram::attention, "q"_a, "group"_a, "layer"_a, "q_heads"_a, "scale"_a,
           "window"_a.none() = nb::none(), "softcap"_a.none() = nb::none(), "sinks"_a.none() = nb::none())
      .def(
          "activate", [](PyProgram& p, int src, const std::string& act) { return p.program->activate(src, act); },
          "src"_a, "act"_a)
      .def(
          "gather_rows", [](PyProgram& p, int src) { return p.program->gather_rows(src); }, "src"_a)
      .def(
          "hidden",
          [](PyProgram& p, int src, const Weight& weight, float eps) {
            return p.program->hidden(src, weight.ref, eps);
          },
          "src"_a, "weight"_a, "eps"_a)
      .def("logits", &PyProgram::logits, "src"_a, "weight"_a, "scale"_a = 1.0f, "softcap"_a.none() = nb::none())
      .def(
          "sample", [](PyProgram& p, int logits, int vocab) { p.program->sample(logits, vocab); }, "logits"_a,
          "vocab"_a)
      .def(
          "layer_written", [](PyProgram& p, int layer) { p.program->layer_written(layer); }, "layer"_a)
      .def(
          "tap", [](PyProgram& p, int src) { return p.program->tap(src); }, "src"_a)
      .def(
          "wait_flag", [](PyProgram& p, int index) { p.program->wait_flag(index); }, "index"_a)
      .def(
          "collective",
          [](PyProgram& p, int src, uintptr_t function, uintptr_t context) {
            p.program->collective(src, (CollectiveFn)function, (void*)context);
          },
          "src"_a, "function"_a, "context"_a);
}

std::vector<std::string> op_names(const PyProgram& p) {
  std::vector<std::string> names;
  for (const Op& op : p.program->ops()) names.emplace_back(Program::name(op.kind));
  return names;
}

}  // namespace

void bind_program(nb::module_& m) {
  bind_batch(m);
  nb::class_<PyProgram> c(m, "Program");
  c.def(nb::init<const std::string&, int, int, int, int, bool, bool, std::vector<std::shared_ptr<KVPool>>,
                 const std::vector<std::pair<Floats2, Floats2>>&, bool>(),
        "isa"_a, "threads"_a, "max_rows"_a, "max_logit_rows"_a, "max_positions"_a, "float32"_a, "naive_attention"_a,
        "pools"_a, "ropes"_a, "integer_products"_a = false);
  bind_recording(c);
  c.def_prop_ro("num_ops", [](const PyProgram& p) { return p.program->ops().size(); })
      .def_prop_ro("op_names", &op_names)
      .def("run", &PyProgram::run, "batch"_a)
      .def("run_op", &PyProgram::run_op, "index"_a, "batch"_a)
      .def("run_from", &PyProgram::run_from, "index"_a, "batch"_a)
      .def("run_ops", &PyProgram::run_ops, "first"_a, "last"_a, "batch"_a)
      .def(
          "read", [](PyProgram& p, int buffer, int64_t rows) { return read_buffer(*p.program, buffer, rows); },
          "buffer"_a, "rows"_a)
      .def("write", &PyProgram::write, "buffer"_a, "values"_a)
      .def("results", [](const PyProgram& p) { return results(*p.program, p.wanted); })
      .def("ranks", [](const PyProgram& p) { return ranks(*p.program); })
      .def("op_seconds", [](const PyProgram& p) { return p.program->seconds(); })
      .def(
          "set_timing", [](PyProgram& p, bool on) { p.program->timing = on; }, "on"_a)
      .def_prop_ro("layers_written", [](const PyProgram& p) { return p.program->layers_written.load(); })
      .def(
          "set_flag", [](PyProgram& p, int index, bool ready) { p.program->set_flag(index, ready); }, "index"_a,
          "ready"_a)
      .def_prop_ro("workspace_bytes", [](PyProgram& p) { return p.program->workspace_bytes(); })
      .def("close", [](PyProgram& p) {
        const nb::gil_scoped_release release;
        p.program->close();
      });
}

}  // namespace octavo
