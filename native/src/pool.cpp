#include "pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>

namespace octavo {
namespace {

constexpr int kSpinNanoseconds = 20000;

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

long futex(std::atomic<uint32_t>& word, int op, uint32_t value) {
  return syscall(SYS_futex, &word, op | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr, 0);
}

// Notes where this member runs. Returns the first other member last seen on the same CPU, or -1.
int neighbour(Shared& s, int rank) {
  const int here = sched_getcpu();
  if (s.cpu[rank].load(std::memory_order_relaxed) != here) s.cpu[rank].store(here, std::memory_order_relaxed);
  for (int i = 0; i < s.size; i++) {
    if (i != rank && s.cpu[i].load(std::memory_order_relaxed) == here) return i;
  }
  return -1;
}

// A woken thread is often put on its waker's CPU and left there while other CPUs are busy too. The higher rank
// then asks for a CPU where no member runs, and is free again at once: this moves it, it does not pin it.
void move_away(Shared& s, int rank) {
  constexpr int64_t kEvery = 1000000;  // nanoseconds between moves of one thread
  thread_local int64_t last = 0;
  const int64_t time = now();
  if (time - last < kEvery) return;
  last = time;
  cpu_set_t all, free;
  if (sched_getaffinity(0, sizeof all, &all) != 0) return;
  free = all;
  for (int i = 0; i < s.size; i++) {
    const int cpu = s.cpu[i].load(std::memory_order_relaxed);
    if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_CLR(cpu, &free);
  }
  if (CPU_COUNT(&free) == 0 || sched_setaffinity(0, sizeof free, &free) != 0) return;
  sched_setaffinity(0, sizeof all, &all);
  s.cpu[rank].store(sched_getcpu(), std::memory_order_relaxed);
}

// One barrier; the last to arrive may reset the counter before it lets the others go.
void pass_barrier(Shared& s, int rank, bool reset) {
  const int beside = s.spin ? neighbour(s, rank) : -1;
  if (beside >= 0 && beside < rank) move_away(s, rank);
  const uint32_t phase = s.phase.load(std::memory_order_relaxed);
  if (s.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 < s.size) {
    wait_change(s.phase, phase, s.sleepers, s.spin && beside < 0);
    return;
  }
  s.arrived.store(0, std::memory_order_relaxed);
  if (reset) s.counter.store(0, std::memory_order_relaxed);
  s.phase.store(phase + 1, std::memory_order_seq_cst);
  wake_all(s.phase, s.sleepers);
}

}  // namespace

void wait_change(std::atomic<uint32_t>& word, uint32_t old, std::atomic<int32_t>& sleepers, bool spin) {
  if (spin) {
    // The clock is read seldom: it costs more than a pause.
    const int64_t end = now() + kSpinNanoseconds;
    do {
      for (int i = 0; i < 64; i++) {
        if (word.load(std::memory_order_acquire) != old) return;
        pause_cpu();
      }
    } while (now() < end);
  }
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  while (word.load(std::memory_order_seq_cst) == old) futex(word, FUTEX_WAIT, old);
  sleepers.fetch_sub(1, std::memory_order_relaxed);
}

void wake_all(std::atomic<uint32_t>& word, std::atomic<int32_t>& sleepers) {
  if (sleepers.load(std::memory_order_seq_cst) > 0) futex(word, FUTEX_WAKE, INT_MAX);
}

void Team::barrier() const {
  if (size > 1) pass_barrier(*shared, rank, false);
}

void Team::reset_counter() const { pass_barrier(*shared, rank, true); }

int64_t Team::take() const { return shared->counter.fetch_add(1, std::memory_order_relaxed); }

ThreadPool::ThreadPool(int threads, int cpus) {
  shared_.size = threads;
  shared_.spin = threads <= cpus;
  shared_.cpu = std::make_unique<std::atomic<int>[]>((size_t)threads);
  for (int rank = 0; rank < threads; rank++) shared_.cpu[rank].store(-1, std::memory_order_relaxed);
  // Signals belong to the threads that Python knows.
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &old);
  try {
    for (int rank = 1; rank < threads; rank++) threads_.emplace_back([this, rank] { work(rank); });
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
    end();
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
}

ThreadPool::~ThreadPool() { end(); }

void ThreadPool::end() {
  stop_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_seq_cst);
  wake_all(generation_, idle_);
  for (std::thread& t : threads_) t.join();
}

void ThreadPool::work(int rank) {
  const Team team{rank, shared_.size, &shared_};
  uint32_t seen = 0;
  for (;;) {
    wait_change(generation_, seen, idle_, shared_.spin);
    seen++;
    if (stop_.load(std::memory_order_relaxed)) return;
    job_(context_, team);
    team.barrier();
  }
}

void ThreadPool::run(Job job, void* context) {
  const Team team{0, shared_.size, &shared_};
  job_ = job;
  context_ = context;
  if (shared_.size > 1) {
    generation_.fetch_add(1, std::memory_order_seq_cst);
    wake_all(generation_, idle_);
  }
  job(context, team);
  team.barrier();
}

}  // namespace octavo
