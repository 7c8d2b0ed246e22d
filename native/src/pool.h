// The thread pool: made once, sized by the caller, whose thread is rank 0. Threads wait between jobs, spinning
// for about 20 microseconds and then asleep in the kernel; they never spin where there are more of them than CPUs.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "team.h"

namespace octavo {

// What a team shares. `phase` counts barriers passed; waiters sleep on it. `cpu[rank]` is where that member last ran:
// who waits for one that shares its CPU must not spin, or it keeps the other from running.
struct Shared {
  int size = 1;
  bool spin = true;
  std::unique_ptr<std::atomic<int>[]> cpu;
  alignas(64) std::atomic<int32_t> arrived{0};
  alignas(64) std::atomic<uint32_t> phase{0};
  alignas(64) std::atomic<int32_t> sleepers{0};
  alignas(64) std::atomic<int64_t> counter{0};
};

// Waits until *word differs from `old`; `sleepers` counts those asleep on it.
void wait_change(std::atomic<uint32_t>& word, uint32_t old, std::atomic<int32_t>& sleepers, bool spin);
// Wakes them, after *word was changed.
void wake_all(std::atomic<uint32_t>& word, std::atomic<int32_t>& sleepers);

class ThreadPool {
 public:
  using Job = void (*)(void* context, const Team& team);

  // `threads` members in all; spins only where they do not outnumber `cpus`.
  ThreadPool(int threads, int cpus);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Runs the job on every member, the caller as rank 0, and returns when all have finished.
  void run(Job job, void* context);
  int size() const { return shared_.size; }

 private:
  void work(int rank);
  void end();

  Shared shared_;
  Job job_ = nullptr;
  void* context_ = nullptr;
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<int32_t> idle_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

}  // namespace octavo
