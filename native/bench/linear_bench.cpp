// Times the matrix products of one step of a 135 M parameter model (30 layers, 4-bit, and an 8-bit head) for several
// numbers of rows: milliseconds, GFLOP/s and the share of this machine's multiply-add peak. ms/step is the sum of each
// product's least time over the repeats (weights come from memory: together they exceed the caches), so that other
// programs on the machine disturb it little; the median step includes them.
// Usage: linear_bench [isa] [threads] [repeats] [types: BF16, Q4_1, Q4_K, G4, ...; several joined by commas] [rows...]
// A type followed by + is multiplied by integers, the head too.
// Several types take turns, so that a disturbance meets all of them; each one's layers are also given as a ratio to the
// first's. Where a type has blocks of 256, all use the nearest depths that are multiples of it.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels.h"
#include "memory.h"
#include "pack.h"
#include "pool.h"
#include "source.h"

namespace {

using octavo::PackedWeight;
using octavo::SourceType;
using octavo::WeightKind;

constexpr int kLayers = 30, kMaxK = 1536, kVocab = 49152, kHidden = 576;
constexpr int kShapes[4][2] = {{960, 576}, {576, 576}, {3072, 576}, {576, 1536}};

int depth(int k, bool whole) { return whole ? (k + 128) / 256 * 256 : k; }

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Matrix {
  PackedWeight weight;
  octavo::Mapping data;
};

// Where a type's halves lie in its blocks; -1: floats at 0 and, for G4, 4.
std::array<int, 2> halves(SourceType type) {
  switch (type) {
    case SourceType::kQ2_K:
      return {80, 82};
    case SourceType::kQ3_K:
      return {108, 108};
    case SourceType::kQ6_K:
      return {208, 208};
    case SourceType::kG4:
    case SourceType::kG8:
      return {-1, -1};
    case SourceType::kQ4_1:
    case SourceType::kQ5_1:
    case SourceType::kQ4_K:
    case SourceType::kQ5_K:
      return {0, 2};
    default:
      return {0, 0};
  }
}

void set_scales(SourceType type, uint8_t* block) {
  const float scale = 0.01f;
  const uint16_t half = 0x2020;
  if (type == SourceType::kG4 || type == SourceType::kG8) std::memcpy(block, &scale, 4);
  if (type == SourceType::kG4) std::memcpy(block + 4, &scale, 4);
  for (int at : halves(type))
    if (at >= 0) std::memcpy(block + at, &half, 2);
}

Matrix make_matrix(SourceType type, int n, int k, std::mt19937& random) {
  Matrix m;
  const octavo::SourceInfo& info = octavo::source_info(type);
  const size_t bytes = octavo::packed_bytes(info.kind, n, k);
  m.data = octavo::Mapping::zeroed(bytes);
  std::vector<uint8_t> source(octavo::source_row_bytes(type, k) * n);
  for (auto& b : source) b = (uint8_t)random();
  if (octavo::quantised(type)) {
    for (size_t i = 0; i < source.size(); i += info.bytes) set_scales(type, &source[i]);
  } else {
    for (size_t i = 0; i < source.size(); i += info.bytes) source[i + info.bytes - 1] = 0x3c;
  }
  octavo::pack(type, info.kind, n, k, source.data(), m.data.data());
  m.weight = {info.kind, n, k, m.data.data()};
  return m;
}

// Runs one function on every member at once.
class Crew {
 public:
  explicit Crew(int size) : threads_(size, size) {}
  void run(std::function<void(const octavo::Team&)> f) {
    threads_.run([](void* self, const octavo::Team& team) {
      _mm_setcsr(_mm_getcsr() | 0x8040);
      (*(std::function<void(const octavo::Team&)>*)self)(team);
    }, &f);
  }

 private:
  octavo::ThreadPool threads_;
};

// Independent multiply-add chains in 256-bit registers: GFLOP/s of one thread.
__attribute__((target("avx2,fma"), optimize("O3"))) double peak_avx2() {
  __m256 s[12];
  for (auto& v : s) v = _mm256_set1_ps(1.0f);
  __m256 x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(0.001f);
  const int loops = 200000;
  const double start = now();
  for (int i = 0; i < loops; i++) {
#pragma GCC unroll 12
    for (auto& v : s) v = _mm256_fmadd_ps(v, x, y);
    asm volatile("" : "+x"(x), "+x"(y));
  }
  const double seconds = now() - start;
  float sink = 0;
  for (auto& v : s) sink += _mm256_cvtss_f32(v);
  if (sink == 12345.0f) std::puts("");
  return loops * 12.0 * 16 / seconds / 1e9;
}

__attribute__((target("avx512f"), optimize("O3"))) double peak_avx512() {
  __m512 s[12];
  for (auto& v : s) v = _mm512_set1_ps(1.0f);
  __m512 x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(0.001f);
  const int loops = 200000;
  const double start = now();
  for (int i = 0; i < loops; i++) {
#pragma GCC unroll 12
    for (auto& v : s) v = _mm512_fmadd_ps(v, x, y);
    asm volatile("" : "+x"(x), "+x"(y));
  }
  const double seconds = now() - start;
  float sink = 0;
  for (auto& v : s) sink += _mm512_cvtss_f32(v);
  if (sink == 12345.0f) std::puts("");
  return loops * 12.0 * 32 / seconds / 1e9;
}

double measure_peak(Crew& crew, int threads, bool wide) {
  double best = 0;
  for (int i = 0; i < 50; i++) {
    std::vector<double> each(threads);
    crew.run([&](const octavo::Team& team) { each[team.rank] = wide ? peak_avx512() : peak_avx2(); });
    double sum = 0;
    for (double v : each) sum += v;
    best = std::max(best, sum);
  }
  return best;
}

struct Step {
  std::string name;
  bool integer = false;
  std::vector<Matrix> layers;
  std::vector<double> least, totals;
};

struct Rows {
  std::vector<uint16_t> src;
  std::vector<float> dst;
  octavo::Mapping converted;
};

// Runs every product once and keeps each one's least time, the head's last.
void run_step(const octavo::Kernels& kernels, Step& step, const Matrix& head, Rows& io, Crew& crew, int rows) {
  double total = 0;
  for (size_t i = 0; i <= step.layers.size(); i++) {
    const Matrix& m = i < step.layers.size() ? step.layers[i] : head;
    const double start = now();
    crew.run([&](const octavo::Team& team) {
      octavo::LinearArgs args{};
      args.weight = &m.weight;
      args.src = io.src.data();
      args.dst = io.dst.data();
      args.rows = rows;
      args.ld_src = kMaxK;
      args.ld_dst = m.weight.n;
      args.integer = step.integer;
      args.converted = io.converted.data();
      kernels.linear(args, team);
    });
    const double seconds = now() - start;
    step.least[i] = std::min(step.least[i], seconds);
    total += seconds;
  }
  step.totals.push_back(total);
}

const octavo::Kernels* find(const std::string& isa) {
  if (isa == "portable") return &octavo::kKernelsPortable;
  if (isa == "avx512") return &octavo::kKernelsAvx512;
  if (isa == "amx") return &octavo::kKernelsAmx;
  return &octavo::kKernelsAvx2;
}

struct Way {
  SourceType type;
  bool integer;
};

std::vector<Way> parse_types(const std::string& list) {
  std::vector<Way> types;
  for (size_t at = 0; at <= list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    const bool integer = list[end - 1] == '+';
    types.push_back({octavo::source_type(list.substr(at, end - at - integer)), integer});
    at = end + 1;
  }
  return types;
}

void report(std::vector<Step>& steps, int rows, double layer_flops, double head_flops, double peak) {
  double first = 0;
  for (Step& step : steps) {
    std::sort(step.totals.begin(), step.totals.end());
    const double head = step.least.back();
    double all = 0;
    for (double v : step.least) all += v;
    if (first == 0) first = all - head;
    const double rate = (layer_flops + head_flops) * rows / all / 1e9;
    std::printf("%4d  %-6s  %7.2f  %6.2f  %5.2f  %6.2f  %13.2f  %7.1f  %6.1f%%\n", rows, step.name.c_str(), all * 1e3,
                (all - head) * 1e3, (all - head) / first, head * 1e3, step.totals[step.totals.size() / 2] * 1e3, rate,
                100 * rate / peak);
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string isa = argc > 1 ? argv[1] : "avx2";
  const int threads = argc > 2 ? std::atoi(argv[2]) : 2, repeats = argc > 3 ? std::atoi(argv[3]) : 5;
  const std::vector<Way> types = parse_types(argc > 4 ? argv[4] : "Q4_1");
  std::vector<int> all_rows;
  for (int i = 5; i < argc; i++) all_rows.push_back(std::atoi(argv[i]));
  if (all_rows.empty()) all_rows = {1, 2, 4, 8, 16, 32, 64, 128, 512};
  _mm_setcsr(_mm_getcsr() | 0x8040);
  std::mt19937 random(7);
  bool whole = false;
  for (const Way& t : types) whole = whole || octavo::source_info(t.type).values == 256;
  std::vector<Step> steps;
  double layer_flops = 0;
  for (const auto& [t, integer] : types) {
    Step step;
    step.name = octavo::source_info(t).name + std::string(integer ? "+" : "");
    step.integer = integer;
    layer_flops = 0;
    for (int l = 0; l < kLayers; l++)
      for (const auto& s : kShapes) {
        step.layers.push_back(make_matrix(t, s[0], depth(s[1], whole), random));
        layer_flops += 2.0 * s[0] * depth(s[1], whole);
      }
    steps.push_back(std::move(step));
  }
  const Matrix head = make_matrix(SourceType::kQ8_0, kVocab, kHidden, random);
  const int most = *std::max_element(all_rows.begin(), all_rows.end());
  Rows io;
  io.src.resize((size_t)most * kMaxK);
  for (auto& v : io.src) v = (uint16_t)(0x3c00 + random() % 0x300 + (random() % 2 << 15));
  io.dst.resize((size_t)most * kVocab);
  io.converted = octavo::Mapping::zeroed(octavo::integer_bytes(most, kMaxK));

  Crew crew(threads);
  const double peak = measure_peak(crew, threads, isa == "avx512" || isa == "amx");
  std::printf("%s, %d threads, multiply-add peak %.1f GFLOP/s\n", isa.c_str(), threads, peak);
  std::printf("rows  type    ms/step  layers  ratio    head  (median step)  GFLOP/s  of peak\n");
  for (int rows : all_rows) {
    for (Step& step : steps) {
      step.least.assign(step.layers.size() + 1, 1e9);
      step.totals.clear();
    }
    for (int i = 0; i < repeats; i++)
      for (Step& step : steps) run_step(*find(isa), step, head, io, crew, rows);
    report(steps, rows, layer_flops, 2.0 * kVocab * kHidden, peak);
  }
  return 0;
}
