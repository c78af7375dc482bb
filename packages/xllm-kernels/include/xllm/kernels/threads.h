// The one thread pool of all native CPU code. Knows nothing of what it runs.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace xllm::kernels::cpu {

// Physical cores that this process may use: its affinity mask, one per core, capped by the cgroup's CPU quota.
int num_usable_cores();

// Threads that share a parallel_for, the caller included; num_usable_cores() until set.
int get_num_threads();

// Stops the old workers, then starts num_threads - 1 (>= 0) new ones. pin: worker i stays on the (i+1)-th usable core.
// Waits for a running parallel_for of another thread. Throws std::invalid_argument below 1 or above 1024.
void set_num_threads(int num_threads, bool pin);

// Runs body(context, begin, end) over [0, num_items) in pieces of at most `grain` items, on the pool and the caller;
// returns when all are done. Pieces go to whoever is free, so results must not depend on who computes which.
// One caller has the pool at a time: a second one, or a nested call, runs its items itself. body must not throw.
// After fork() the child gets a new pool at its first call.
using ParallelBody = void (*)(void* context, int64_t begin, int64_t end);
void parallel_for(int64_t num_items, int64_t grain, ParallelBody body, void* context);

// While one exists, workers spin between jobs rather than sleep, for jobs that follow each other within microseconds, and
// threads that wait fetch into their caches what `announce` named. Costs whole cores: keep it short. May be nested, and
// used by several threads at once.
class Burst {
 public:
  Burst();
  ~Burst();
  Burst(const Burst&) = delete;
  Burst& operator=(const Burst&) = delete;
};

// Memory that a later job will read from `memory` on. A hint: it replaces the one before, and ends with the burst.
void announce(const void* memory, size_t num_bytes);

// At least num_bytes of 64-byte aligned memory that belongs to the calling thread until its next call. Not cleared.
void* thread_scratch(size_t num_bytes);

}  // namespace xllm::kernels::cpu
