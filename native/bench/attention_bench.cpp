// How long attention takes on this machine. Not part of the default build:
//   cmake -S native -B build/dev -DOCTAVO_BENCH=ON && cmake --build build/dev && build/dev/attention_bench avx2 2
// Arguments: instruction set, threads, (q heads, KV heads, head size), (one case). A case walks the layers of one pool,
// as a step does, so short contexts come from memory as cold as they do in service. The best of several walks is
// printed; with one thread the clock is that thread's CPU time, so that other work on the machine disturbs less.
#include <time.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels.h"
#include "kv_pool.h"
#include "memory.h"
#include "pool.h"

namespace octavo {
namespace {

constexpr int kLayers = 30, kBlock = 32;

struct Setup {
  const Kernels* kernels;
  int threads, q_heads, kv_heads, head_dim;
};

struct Case {
  const char* name;
  int streams, count, context;  // rows of each stream, positions up to the last row
};

struct Job {
  const Kernels* kernels;
  AttentionArgs args;
  const KVPool* pool;
};

void walk(void* context, const Team& team) {
  const Job& job = *static_cast<Job*>(context);
  AttentionArgs args = job.args;
  job.kernels->enter();
  for (int layer = 0; layer < kLayers; layer++) {
    args.kv = job.pool->layer(layer);
    job.kernels->attention(args, team);
    team.barrier();
  }
  job.kernels->leave();
}

double seconds(bool cpu_time) {
  timespec t{};
  clock_gettime(cpu_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

// Pairs of a query row and a position that it sees.
double pairs(const Case& c) {
  double n = 0;
  for (int r = 0; r < c.count; r++) n += c.context - c.count + r + 1;
  return n * c.streams;
}

void measure(const Setup& s, const Case& c, ThreadPool& threads) {
  const int blocks = (c.context + kBlock - 1) / kBlock, dq = (s.head_dim + 31) / 32 * 32;
  KVPool pool(blocks * c.streams, kBlock, kLayers, s.kv_heads, s.head_dim, false);
  pool.fill(0.25f);
  const int rows = c.streams * c.count, ld = (s.q_heads * s.head_dim + 31) / 32 * 32;
  std::vector<uint16_t> q((size_t)(rows + 32) * s.q_heads * dq, 0x3e80), out((size_t)(rows + 32) * ld);
  std::vector<int32_t> tables((size_t)blocks * c.streams);
  for (size_t i = 0; i < tables.size(); i++) tables[i] = (int32_t)(i * 7919 % tables.size());
  std::vector<SeqRun> runs;
  for (int i = 0; i < c.streams; i++)
    runs.push_back({i * c.count, c.count, c.context - c.count, 0, tables.data() + (size_t)i * blocks});
  const Mapping scratch =
      Mapping::zeroed(attention_scratch_bytes(s.threads, c.context, s.q_heads, s.head_dim, rows, false));
  Job job{};
  job.kernels = s.kernels;
  job.pool = &pool;
  job.args = {q.data(),
              out.data(),
              runs.data(),
              c.streams,
              s.q_heads,
              s.q_heads * dq,
              ld,
              1.0f / std::sqrt((float)s.head_dim),
              0,
              0,
              nullptr,
              false,
              scratch.data(),
              pool.layer(0)};
  double best = 1e9;
  double spent = 0;
  for (int i = 0; i < 12 && spent < 3; i++) {
    const double start = seconds(s.threads == 1);
    threads.run(walk, &job);
    const double t = seconds(s.threads == 1) - start;
    best = t < best ? t : best;
    spent += t;
  }
  const double layer = best / kLayers;
  const double bytes = (double)c.streams * blocks * s.kv_heads * KVPool::tile_bytes(s.head_dim, false);
  std::printf("%-34s %9.1f us a layer %8.2f ms all %d layers %7.1f GB/s of pages %7.1f GFLOP/s\n", c.name, layer * 1e6,
              best * 1e3, kLayers, bytes / layer / 1e9, pairs(c) * s.q_heads * s.head_dim * 4 / layer / 1e9);
}

const Kernels* find(const char* name) {
#if defined(__x86_64__)
  for (const Kernels* k : {&kKernelsAvx2, &kKernelsAvx512, &kKernelsAmx})
    if (!std::strcmp(k->name, name)) return k;
#endif
  return &kKernelsPortable;
}

}  // namespace
}  // namespace octavo

int main(int argc, char** argv) {
  using namespace octavo;
  Setup s{find(argc > 1 ? argv[1] : "avx2"), argc > 2 ? std::atoi(argv[2]) : 2, 9, 3, 64};
  if (argc > 5) {
    s.q_heads = std::atoi(argv[3]);
    s.kv_heads = std::atoi(argv[4]);
    s.head_dim = std::atoi(argv[5]);
  }
  std::printf("%s, %d threads, %d q heads, %d KV heads, head size %d\n", s.kernels->name, s.threads, s.q_heads,
              s.kv_heads, s.head_dim);
  ThreadPool threads(s.threads, s.threads);
  const Case cases[] = {{"decode, 1 stream x 160", 1, 1, 160},   {"decode, 32 streams x 160", 32, 1, 160},
                        {"decode, 1 stream x 4000", 1, 1, 4000}, {"decode, 8 streams x 4000", 8, 1, 4000},
                        {"prefill, 512 rows", 1, 512, 512},      {"prefill, 512 rows at 3488", 1, 512, 4000}};
  const int only = argc > 6 ? std::atoi(argv[6]) : -1;
  for (int i = 0; i < 6; i++)
    if (only < 0 || only == i) measure(s, cases[i], threads);
  return 0;
}
