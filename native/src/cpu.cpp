#include "cpu.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace octavo {
namespace {

#if defined(__x86_64__)
struct Features {
  bool avx2 = false, avx512 = false, amx = false;
};

uint64_t enabled_state() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return ((uint64_t)high << 32) | low;
}

// Tile registers are 8 KB of state a thread: Linux hands them out on request, for the whole process.
bool tile_permission() {
  constexpr long kRequest = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

Features detect() {
  Features f;
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return f;
  const bool osxsave = c >> 27 & 1, fma = c >> 12 & 1, f16c = c >> 29 & 1, avx = c >> 28 & 1;
  if (!osxsave || !avx || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return f;
  const uint64_t state = enabled_state();
  f.avx2 = fma && f16c && (b >> 5 & 1) && (state & 0x6) == 0x6;
  const bool bits512 = (b >> 16 & 1) && (b >> 17 & 1) && (b >> 30 & 1) && (b >> 31 & 1);
  f.avx512 = f.avx2 && bits512 && (state & 0xe6) == 0xe6;
  const bool tiles = (d >> 24 & 1) && (d >> 22 & 1);
  f.amx = f.avx512 && tiles && (state & 0x60000) == 0x60000 && tile_permission();
  return f;
}
#endif

std::string read_file(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// CPUs a quota allows: v2 holds "quota period" or "max period" in one file, v1 two files with -1 for none.
double quota(const std::string& text) {
  std::stringstream in(text);
  std::string limit;
  double period = 0;
  if (!(in >> limit >> period) || limit == "max" || limit[0] == '-' || period <= 0) return INFINITY;
  return std::atof(limit.c_str()) / period;
}

// The least quota of a cgroup and its ancestors. Inside a container the path may not exist below the mount:
// the walk upwards then finds what does.
double group_quota(const std::string& root, std::string path, bool v2) {
  double least = INFINITY;
  for (;;) {
    const std::string dir = root + path + (path.empty() || path.back() != '/' ? "/" : "");
    const double found = v2 ? quota(read_file(dir + "cpu.max"))
                            : quota(read_file(dir + "cpu.cfs_quota_us") + " " + read_file(dir + "cpu.cfs_period_us"));
    least = std::min(least, found);
    const size_t slash = path.find_last_of('/');
    if (path.empty() || slash == std::string::npos) return least;
    path.resize(slash);
  }
}

bool lists_cpu(const std::string& controllers) { return ("," + controllers + ",").find(",cpu,") != std::string::npos; }

double cgroup_limit(const std::string& prefix) {
  double least = INFINITY;
  std::stringstream lines(read_file(prefix + "/proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    if (controllers.empty()) {
      least = std::min(least, group_quota(prefix + "/sys/fs/cgroup", path, true));
    } else if (lists_cpu(controllers)) {
      for (const std::string& mount : {std::string("cpu"), controllers}) {
        least = std::min(least, group_quota(prefix + "/sys/fs/cgroup/" + mount, path, false));
      }
    }
  }
  return least;
}

}  // namespace

std::vector<std::string> usable_isas() {
  std::vector<std::string> names;
#if defined(__x86_64__)
  static const Features features = detect();
  if (features.amx) names.push_back("amx");
  if (features.avx512) names.push_back("avx512");
  if (features.avx2) names.push_back("avx2");
#endif
  names.push_back("portable");
  return names;
}

const Kernels* find_kernels(const std::string& name) {
  const std::vector<std::string> usable = usable_isas();
#if defined(__x86_64__)
  const bool avx2 = std::find(usable.begin(), usable.end(), "avx2") != usable.end();
  if (avx2 && name == kKernelsAmxEmulated.name) return &kKernelsAmxEmulated;
#endif
  if (std::find(usable.begin(), usable.end(), name) == usable.end()) return nullptr;
#if defined(__x86_64__)
  for (const Kernels* k : {&kKernelsAmx, &kKernelsAvx512, &kKernelsAvx2}) {
    if (name == k->name) return k;
  }
#endif
  return &kKernelsPortable;
}

int cpu_count(const std::string& prefix) {
  cpu_set_t set;
  CPU_ZERO(&set);
  int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : (int)sysconf(_SC_NPROCESSORS_ONLN);
  const double limit = cgroup_limit(prefix);
  if (limit < count) count = (int)std::ceil(limit - 1e-9);
  return std::max(count, 1);
}

}  // namespace octavo
