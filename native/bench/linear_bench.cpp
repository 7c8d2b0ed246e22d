// Times the matrix products of one step of a 135 M parameter model (30 layers, 4-bit, and an 8-bit head) for several
// numbers of rows: milliseconds, GFLOP/s and the share of this machine's multiply-add peak. ms/step is the sum of each
// product's least time over the repeats (weights come from memory: together they exceed the caches), so that other
// programs on the machine disturb it little; the median step includes them.
// Usage: linear_bench [isa] [threads] [repeats] [kind: q4_1 | q8_0 | bf16] [rows...]
#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels.h"
#include "pack.h"

namespace {

using octavo::PackedWeight;
using octavo::SourceType;
using octavo::WeightKind;

constexpr int kLayers = 30, kMaxK = 1536, kVocab = 49152, kHidden = 576;
constexpr int kShapes[4][2] = {{960, 576}, {576, 576}, {3072, 576}, {576, 1536}};

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Matrix {
  PackedWeight weight;
  std::unique_ptr<uint8_t, void (*)(void*)> data{nullptr, std::free};
};

Matrix make_matrix(WeightKind kind, int n, int k, std::mt19937& random) {
  Matrix m;
  const size_t bytes = octavo::packed_bytes(kind, n, k);
  m.data.reset((uint8_t*)std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096));
  const SourceType type = kind == WeightKind::kBf16   ? SourceType::kBf16
                          : kind == WeightKind::kQ8_0 ? SourceType::kQ8_0
                                                      : SourceType::kQ4_1;
  std::vector<uint8_t> source(octavo::source_row_bytes(type, k) * n);
  for (auto& b : source) b = (uint8_t)random();
  const size_t block = kind == WeightKind::kQ8_0 ? 34 : 20, heads = kind == WeightKind::kQ8_0 ? 1 : 2;
  if (kind == WeightKind::kBf16) {
    for (size_t i = 0; i < source.size(); i += 2) source[i + 1] = 0x3c;
  } else {
    for (size_t i = 0; i < source.size(); i += block)
      for (size_t h = 0; h < heads; h++) source[i + 2 * h + 1] = 0x20;
  }
  octavo::pack(type, kind, n, k, source.data(), m.data.get());
  m.weight = {kind, n, k, m.data.get()};
  return m;
}

// Runs one function on every member at once.
class Crew {
 public:
  explicit Crew(int size) : size_(size) {
    for (int i = 1; i < size; i++) threads_.emplace_back([this, i] { loop(i); });
  }
  ~Crew() {
    stop_ = true;
    run([](int) {});
    for (auto& t : threads_) t.join();
  }
  void run(std::function<void(int)> f) {
    job_ = std::move(f);
    left_.store(size_ - 1);
    epoch_.fetch_add(1);
    job_(0);
    while (left_.load() > 0) _mm_pause();
  }

 private:
  void loop(int rank) {
    _mm_setcsr(_mm_getcsr() | 0x8040);
    for (int seen = 0; !stop_;) {
      while (epoch_.load() == seen) _mm_pause();
      seen = epoch_.load();
      job_(rank);
      left_.fetch_sub(1);
    }
  }
  int size_;
  std::function<void(int)> job_;
  std::atomic<int> epoch_{0}, left_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
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
    crew.run([&](int rank) { each[rank] = wide ? peak_avx512() : peak_avx2(); });
    double sum = 0;
    for (double v : each) sum += v;
    best = std::max(best, sum);
  }
  return best;
}

struct Step {
  std::vector<Matrix> layers;
  Matrix head;
  std::vector<uint16_t> src;
  std::vector<float> dst;
};

// Runs every product once and keeps each one's least time in `least`, the head's last. Returns the step's seconds.
double run_step(const octavo::Kernels& kernels, Step& step, Crew& crew, int threads, int rows,
                std::vector<double>& least) {
  double total = 0;
  for (size_t i = 0; i <= step.layers.size(); i++) {
    const Matrix& m = i < step.layers.size() ? step.layers[i] : step.head;
    const double start = now();
    crew.run([&](int rank) {
      octavo::LinearArgs args{};
      args.weight = &m.weight;
      args.src = step.src.data();
      args.dst = step.dst.data();
      args.rows = rows;
      args.ld_src = kMaxK;
      args.ld_dst = m.weight.n;
      kernels.linear(args, octavo::Team{rank, threads, nullptr});
    });
    const double seconds = now() - start;
    least[i] = std::min(least[i], seconds);
    total += seconds;
  }
  return total;
}

const octavo::Kernels* find(const std::string& isa) {
  if (isa == "portable") return &octavo::kKernelsPortable;
  if (isa == "avx512") return &octavo::kKernelsAvx512;
  if (isa == "amx") return &octavo::kKernelsAmx;
  return &octavo::kKernelsAvx2;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string isa = argc > 1 ? argv[1] : "avx2", kind_name = argc > 4 ? argv[4] : "q4_1";
  const int threads = argc > 2 ? std::atoi(argv[2]) : 2, repeats = argc > 3 ? std::atoi(argv[3]) : 5;
  std::vector<int> all_rows;
  for (int i = 5; i < argc; i++) all_rows.push_back(std::atoi(argv[i]));
  if (all_rows.empty()) all_rows = {1, 2, 4, 8, 16, 32, 64, 128, 512};
  const WeightKind kind = kind_name == "bf16"   ? WeightKind::kBf16
                          : kind_name == "q8_0" ? WeightKind::kQ8_0
                                                : WeightKind::kQ4_1;
  _mm_setcsr(_mm_getcsr() | 0x8040);
  std::mt19937 random(7);
  Step step;
  for (int l = 0; l < kLayers; l++)
    for (const auto& s : kShapes) step.layers.push_back(make_matrix(kind, s[0], s[1], random));
  step.head = make_matrix(WeightKind::kQ8_0, kVocab, kHidden, random);
  const int most = *std::max_element(all_rows.begin(), all_rows.end());
  step.src.resize((size_t)most * kMaxK);
  for (auto& v : step.src) v = (uint16_t)(0x3c00 + random() % 0x300 + (random() % 2 << 15));
  step.dst.resize((size_t)most * kVocab);
  double per_row = 2.0 * kVocab * kHidden;
  for (const auto& s : kShapes) per_row += 2.0 * kLayers * s[0] * s[1];

  Crew crew(threads);
  const double peak = measure_peak(crew, threads, isa == "avx512" || isa == "amx");
  std::printf("%s, %d threads, %s, multiply-add peak %.1f GFLOP/s\n", isa.c_str(), threads, kind_name.c_str(), peak);
  std::printf("rows  ms/step  layers    head  (median step)  GFLOP/s  of peak\n");
  for (int rows : all_rows) {
    std::vector<double> totals, least(step.layers.size() + 1, 1e9);
    for (int i = 0; i < repeats; i++) totals.push_back(run_step(*find(isa), step, crew, threads, rows, least));
    std::sort(totals.begin(), totals.end());
    const double head = least.back();
    double all = 0;
    for (double v : least) all += v;
    const double rate = per_row * rows / all / 1e9;
    std::printf("%4d  %7.2f  %6.2f  %6.2f  %13.2f  %7.1f  %6.1f%%\n", rows, all * 1e3, (all - head) * 1e3, head * 1e3,
                totals[totals.size() / 2] * 1e3, rate, 100 * rate / peak);
    std::fflush(stdout);
  }
  return 0;
}
