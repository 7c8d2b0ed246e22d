#include "pool.h"

#include <linux/futex.h>
#include <pthread.h>
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

// One barrier; the last to arrive may reset the counter before it lets the others go.
void pass_barrier(Shared& s, bool reset) {
  const uint32_t phase = s.phase.load(std::memory_order_relaxed);
  if (s.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 < s.size) {
    wait_change(s.phase, phase, s.sleepers, s.spin);
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
  if (size > 1) pass_barrier(*shared, false);
}

void Team::reset_counter() const { pass_barrier(*shared, true); }

int64_t Team::take() const { return shared->counter.fetch_add(1, std::memory_order_relaxed); }

ThreadPool::ThreadPool(int threads, int cpus) {
  shared_.size = threads;
  shared_.spin = threads <= cpus;
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
