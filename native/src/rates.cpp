#include "rates.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "cpu.h"
#include "memory.h"
#include "pool.h"

namespace octavo {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point began) { return std::chrono::duration<double>(Clock::now() - began).count(); }

struct ReadJob {
  const Kernels& kernels;
  const uint8_t* data;
  size_t bytes;
  volatile uint64_t sink[64];
};

void read_part(void* context, const Team& team) {
  auto& job = *(ReadJob*)context;
  int64_t begin, end;
  team.range((int64_t)(job.bytes / 256), &begin, &end);
  job.sink[team.rank % 64] = job.kernels.limit_read(job.data + begin * 256, (size_t)(end - begin) * 256);
}

struct FlopJob {
  const Kernels& kernels;
  int64_t rounds;
  std::atomic<int64_t> done{0};
};

void multiply_add_part(void* context, const Team&) {
  auto& job = *(FlopJob*)context;
  float sink = 0;
  job.done += (int64_t)job.kernels.limit_multiply_add(job.rounds, &sink);
}

}  // namespace

double read_rate(const Kernels& kernels, int threads, size_t bytes) {
  constexpr double kSeconds = 0.4;
  constexpr int kPasses = 5;
  Mapping buffer = Mapping::zeroed(bytes);
  std::memset(buffer.data(), 1, bytes);
  ThreadPool pool(threads, cpu_count(""));
  ReadJob job{kernels, buffer.data(), bytes, {}};
  double best = 0;
  const auto start = Clock::now();
  for (int pass = 0; pass < kPasses || seconds_since(start) < kSeconds; pass++) {
    const auto began = Clock::now();
    pool.run(read_part, &job);
    best = std::max(best, (double)bytes / seconds_since(began));
  }
  return best;
}

double multiply_add_rate(const Kernels& kernels, int threads) {
  constexpr double kSeconds = 0.4, kOnePass = 0.01;
  ThreadPool pool(threads, cpu_count(""));
  FlopJob job{kernels, 1000};
  double best = 0;
  const auto start = Clock::now();
  while (seconds_since(start) < kSeconds) {
    job.done = 0;
    const auto began = Clock::now();
    pool.run(multiply_add_part, &job);
    const double seconds = seconds_since(began);
    best = std::max(best, (double)job.done / seconds);
    if (seconds < kOnePass) job.rounds *= 2;
  }
  return best;
}

}  // namespace octavo
