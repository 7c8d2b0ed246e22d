// What the machine offers: instruction sets and CPUs.
#pragma once
#include <string>
#include <vector>

#include "kernels.h"

namespace octavo {

// Names of usable kernel tables, best first. Asks the kernel for the tile permission where the CPU has AMX.
std::vector<std::string> usable_isas();
// The table of a usable name; null where the machine lacks it or the name is unknown.
const Kernels* find_kernels(const std::string& name);
// CPUs this process may use: affinity, capped by cgroup quotas (v1 and v2, rounded up). Files are read under
// `prefix` (tests pass a fake tree).
int cpu_count(const std::string& prefix);

}  // namespace octavo
