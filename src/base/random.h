// Counter-based random numbers: the same (seed, counter) gives the same bits on every backend.
#pragma once
#include <array>
#include <cstdint>

namespace sluice {

// Philox 4x32 with ten rounds. Source: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as
// 1, 2, 3" (SC 2011), section 3.3 and table 2.
constexpr std::array<uint32_t, 4> philox(uint64_t seed, uint64_t counter) {
  std::array<uint32_t, 4> c = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0};
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c[0], p1 = uint64_t{0xCD9E8D57u} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// Uniform in [0, 1), a multiple of 2^-53.
constexpr double uniform(uint64_t seed, uint64_t counter) {
  const auto word = philox(seed, counter);
  const uint64_t bits = (uint64_t{word[0]} << 32) | word[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

// A stream of random numbers for data and tests.
class Random {
 public:
  explicit Random(uint64_t seed) : seed_(seed) {}
  uint32_t bits() { return philox(seed_, next_++)[0]; }
  double uniform() { return sluice::uniform(seed_, next_++); }
  // Integer in [low, high].
  int64_t integer(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(uniform() * static_cast<double>(high - low + 1));
  }
  double normal();  // mean 0, variance 1 (Box-Muller)

 private:
  uint64_t seed_;
  uint64_t next_ = 0;
};

}  // namespace sluice
