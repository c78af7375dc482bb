// The process's one pool: made at the first use, replaced by set_num_threads and after fork.
#include "xllm/kernels/threads.h"

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#if !defined(_WIN32)
#include <pthread.h>
#endif

#include "thread_pool.h"
#include "usable_cores.h"

namespace xllm::kernels::cpu {
namespace {

constexpr int kMaxThreads = 1024;

// Never destroyed: a worker may still sleep in it when the process exits.
struct SharedPool {
  std::atomic<bool> in_use{false};    // held by the thread whose job runs, or that replaces the pool
  std::atomic<int> num_threads{0};    // 0: not chosen yet
  bool pin = false;
  std::unique_ptr<ThreadPool> pool;   // made when first needed
  Spinning spinning;

  bool try_acquire() { return !in_use.exchange(true, std::memory_order_acquire); }
  void release() { in_use.store(false, std::memory_order_release); }
};

// Releases the pool at the end of a scope, however it is left.
struct Release {
  SharedPool& shared;
  ~Release() { shared.release(); }
};

SharedPool& shared_pool();

SharedPool* make_shared_pool() {
#if !defined(_WIN32)
  // fork() copies the pool's memory but not its workers: forget them.
  pthread_atfork(nullptr, nullptr, [] {
    (void)shared_pool().pool.release();
    shared_pool().spinning.forget_bursts();
    shared_pool().release();
  });
#endif
  return new SharedPool;
}

SharedPool& shared_pool() {
  static SharedPool* const shared = make_shared_pool();
  return *shared;
}

}  // namespace

int get_num_threads() {
  SharedPool& shared = shared_pool();
  int num_threads = shared.num_threads.load(std::memory_order_relaxed);
  if (num_threads == 0) {
    int none = 0;
    shared.num_threads.compare_exchange_strong(none, num_usable_cores());
    num_threads = shared.num_threads.load(std::memory_order_relaxed);
  }
  return num_threads;
}

void set_num_threads(int num_threads, bool pin) {
  if (num_threads < 1 || num_threads > kMaxThreads)
    throw std::invalid_argument("num_threads must be in [1, " + std::to_string(kMaxThreads) + "], not " +
                                std::to_string(num_threads));
  SharedPool& shared = shared_pool();
  while (!shared.try_acquire()) std::this_thread::yield();
  const Release release{shared};
  shared.pool.reset();
  shared.pin = pin;
  shared.num_threads.store(num_threads, std::memory_order_relaxed);
}

Burst::Burst() { shared_pool().spinning.begin_burst(); }

Burst::~Burst() { shared_pool().spinning.end_burst(); }

void announce(const void* memory, size_t num_bytes) { shared_pool().spinning.announce(memory, num_bytes); }

void parallel_for(int64_t num_items, int64_t grain, ParallelBody body, void* context) {
  if (num_items <= 0) return;
  SharedPool& shared = shared_pool();
  if (get_num_threads() == 1 || num_items <= grain || !shared.try_acquire()) {
    body(context, 0, num_items);
    return;
  }
  const Release release{shared};
  if (shared.pool == nullptr)
    shared.pool = std::make_unique<ThreadPool>(get_num_threads(), shared.pin ? usable_cores() : std::vector<int>(),
                                               shared.spinning);
  shared.pool->run(num_items, grain, body, context);
}

}  // namespace xllm::kernels::cpu
