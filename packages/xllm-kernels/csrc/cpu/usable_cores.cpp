// Counts the physical cores that this process may use. Knows nothing of the pool that is sized by it.
#include "usable_cores.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <string>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif

#include "xllm/kernels/threads.h"

namespace xllm::kernels::cpu {
namespace {

// "0,64" or "0-1" for a core with two hardware threads; the CPU's own number where there is no topology.
std::string siblings_of(int cpu) {
  std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
  std::string siblings;
  return std::getline(file, siblings) ? siblings : std::to_string(cpu);
}

// CPUs' worth of time that the cgroup allows; a very large number where it sets no limit.
double cgroup_quota() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  double quota_us = 0, period_us = 0;
  return file >> quota_us >> period_us && period_us > 0 ? quota_us / period_us : 1e9;
}

}  // namespace

std::vector<int> usable_cores() {
  std::vector<int> cpus;
#if defined(__linux__)
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof mask, &mask) == 0) {
    std::set<std::string> seen;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &mask) && seen.insert(siblings_of(cpu)).second) cpus.push_back(cpu);
  }
#endif
  if (cpus.empty())
    for (unsigned cpu = 0; cpu < std::max(1u, std::thread::hardware_concurrency()); ++cpu)
      cpus.push_back(static_cast<int>(cpu));
  return cpus;
}

int num_usable_cores() {
  const double limit = std::max(1.0, std::ceil(cgroup_quota()));
  return static_cast<int>(std::min(static_cast<double>(usable_cores().size()), limit));
}

}  // namespace xllm::kernels::cpu
