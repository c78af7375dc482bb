#include "thread_pool.h"

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif
#include <algorithm>

namespace xllm::kernels::cpu {
namespace {

// About ten microseconds, much less than a neighbour's time slice: turns that a thread waits before it sleeps.
constexpr int kSpins = 400;
// About half a millisecond, for workers in a burst: longer than any part of a step that one thread does alone.
constexpr int kBurstSpins = 16000;
// About fifty microseconds, for the caller in a burst, who waits for pieces that have begun.
constexpr int kCallerSpins = 1600;
// Announced memory that a thread fetches in one turn: as many lines as a core has in flight at a time.
constexpr uintptr_t kFetchBytes = 512;

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

void pin(std::thread& thread, int cpu) {
#if defined(__linux__)
  cpu_set_t mask;
  CPU_ZERO(&mask);
  CPU_SET(static_cast<unsigned>(cpu), &mask);
  pthread_setaffinity_np(thread.native_handle(), sizeof mask, &mask);  // a refusal costs speed only
#else
  (void)thread, (void)cpu;
#endif
}

}  // namespace

void Spinning::end_burst() {
  if (num_bursts_.fetch_sub(1, std::memory_order_relaxed) == 1) announce(nullptr, 0);
}

void Spinning::announce(const void* memory, size_t num_bytes) {
  // A thread that sees one new and one old bound fetches in vain, or nothing: fetching changes nothing but speed.
  end_.store(0, std::memory_order_relaxed);
  fetched_.store(reinterpret_cast<uintptr_t>(memory), std::memory_order_relaxed);
  end_.store(reinterpret_cast<uintptr_t>(memory) + num_bytes, std::memory_order_relaxed);
}

void Spinning::turn() {
  const uintptr_t end = end_.load(std::memory_order_relaxed);
  if (fetched_.load(std::memory_order_relaxed) >= end) return pause_briefly();
  const uintptr_t begin = fetched_.fetch_add(kFetchBytes, std::memory_order_relaxed);
  for (uintptr_t line = begin; line < begin + kFetchBytes && line < end; line += 64)
    __builtin_prefetch(reinterpret_cast<const void*>(line), 0, 2);
}

ThreadPool::ThreadPool(int num_threads, const std::vector<int>& cores, Spinning& spinning) : spinning_(spinning) {
  workers_.reserve(static_cast<size_t>(num_threads - 1));
  for (int i = 0; i + 1 < num_threads; ++i) {
    workers_.emplace_back([this] { work(); });
    if (!cores.empty()) pin(workers_.back(), cores[static_cast<size_t>(i + 1) % cores.size()]);
  }
}

ThreadPool::~ThreadPool() {
  state_.fetch_or(kStop);
  state_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(int64_t num_items, int64_t grain, ParallelBody body, void* context) {
  num_items_ = num_items;
  grain_ = grain;
  body_ = body;
  context_ = context;
  next_.store(0, std::memory_order_relaxed);
  // Nobody is inside and the job is closed, so only the number changes besides the open bit.
  state_.store((state_.load(std::memory_order_relaxed) + kOneJob) | kOpen);
  state_.notify_all();
  take_pieces();
  uint32_t state = state_.fetch_and(~kOpen) & ~kOpen;
  const int most = spinning_.is_burst() ? kCallerSpins : kSpins;
  for (int spins = 0; (state & kInside) != 0; state = state_.load(std::memory_order_acquire)) {
    if (++spins <= most) spinning_.turn();
    else state_.wait(state, std::memory_order_acquire);
  }
}

void ThreadPool::take_pieces() {
  for (;;) {
    const int64_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
    if (begin >= num_items_) return;
    body_(context_, begin, std::min(begin + grain_, num_items_));
  }
}

uint32_t ThreadPool::wait_for_job(uint32_t seen) {
  for (int spins = 0;;) {
    const uint32_t state = state_.load(std::memory_order_acquire);
    const bool is_new = (state & kOpen) != 0 && state / kOneJob != seen / kOneJob;
    if (is_new || (state & kStop) != 0) return state;
    const int most = spinning_.is_burst() ? kBurstSpins : kSpins;
    if (++spins <= most) spinning_.turn();
    else state_.wait(state, std::memory_order_acquire);
  }
}

void ThreadPool::work() {
  for (uint32_t seen = 0;;) {
    uint32_t state = wait_for_job(seen);
    if ((state & kStop) != 0) return;
    // Join only if the job is still open: a closed one's fields may be gone.
    if (!state_.compare_exchange_strong(state, state + 1, std::memory_order_acq_rel)) continue;
    seen = state;
    take_pieces();
    const uint32_t left = state_.fetch_sub(1, std::memory_order_acq_rel) - 1;
    if ((left & (kInside | kOpen)) == 0) state_.notify_all();
  }
}

}  // namespace xllm::kernels::cpu
