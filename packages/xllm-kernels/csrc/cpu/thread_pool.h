// Workers that share the pieces of one job at a time. Knows nothing of how many threads are wanted by default.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "xllm/kernels/threads.h"

namespace xllm::kernels::cpu {

// What threads do while they spin; outlives pools. See Burst and announce in threads.h.
class Spinning {
 public:
  bool is_burst() const { return num_bursts_.load(std::memory_order_relaxed) > 0; }
  void begin_burst() { num_bursts_.fetch_add(1, std::memory_order_relaxed); }
  void end_burst();
  void announce(const void* memory, size_t num_bytes);
  // Passes the time of one turn of a spinning loop.
  void turn();
  // After fork, whose child has none of the threads.
  void forget_bursts() { num_bursts_.store(0, std::memory_order_relaxed); }

 private:
  std::atomic<int> num_bursts_{0};
  // Announced memory [fetched_, end_) that nobody has fetched yet.
  alignas(64) std::atomic<uintptr_t> fetched_{0};
  std::atomic<uintptr_t> end_{0};
};

// A worker spins for a few microseconds after its last piece, in a burst for longer, then sleeps on a futex. A job does not
// wait for a worker that has not woken up by the time the caller has taken the last piece: on a busy machine the caller
// does the work. Threads that spin in a burst fetch announced memory: a step of a model is bound by memory, which would
// idle whenever they wait for each other.
class ThreadPool {
 public:
  // Worker i is pinned to cores[(i + 1) % cores.size()] when cores is not empty.
  ThreadPool(int num_threads, const std::vector<int>& cores, Spinning& spinning);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // As parallel_for. Only one thread may be in run at a time.
  void run(int64_t num_items, int64_t grain, ParallelBody body, void* context);

 private:
  void work();
  void take_pieces();
  // The state once it announces another job than `seen`, or the end of the pool.
  uint32_t wait_for_job(uint32_t seen);

  // state_ is the only word that threads sleep on:
  //   bits 0..11 workers inside the job | bit 12 job open for joining | bit 13 stop | bits 14..31 number of the job
  // The job's fields change only while it is closed and nobody is inside.
  static constexpr uint32_t kInside = (1u << 12) - 1;
  static constexpr uint32_t kOpen = 1u << 12;
  static constexpr uint32_t kStop = 1u << 13;
  static constexpr uint32_t kOneJob = 1u << 14;

  Spinning& spinning_;
  alignas(64) std::atomic<uint32_t> state_{0};
  alignas(64) std::atomic<int64_t> next_{0};
  int64_t num_items_ = 0;
  int64_t grain_ = 1;
  ParallelBody body_ = nullptr;
  void* context_ = nullptr;
  std::vector<std::thread> workers_;
};

}  // namespace xllm::kernels::cpu
