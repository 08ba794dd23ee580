#include "backends/cpu/device.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace sluice::cpu {
namespace {

#if defined(__x86_64__)
// Tiles add 8 KiB of state per thread, so Linux grants them on request, once per process.
bool may_use_tiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

}  // namespace

uint32_t detect_features() {
  uint32_t found = 0;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
    found |= kAvx2;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    found |= kAvx512;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if ((found & kAvx512) && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1)) found |= kAvx512Bf16;
  const bool tiles = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) && (d >> 24 & 1);
  if ((found & kAvx512Bf16) && tiles && may_use_tiles()) found |= kAmxBf16;
#elif defined(__aarch64__)
  found |= kNeon;
#endif
  return found;
}

}  // namespace sluice::cpu
