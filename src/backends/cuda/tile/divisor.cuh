// Division by a number that is constant during a launch: a multiplication and a shift instead of about forty instructions.
#pragma once
#include <cstdint>

namespace sluice::cuda::tile {

// A divisor from 1 to 65536. Converts to its value.
class Divisor {
 public:
  Divisor() = default;
  __host__ explicit constexpr Divisor(int value) : value_(value) {
    while (1 << (shift_ - 31) < value) ++shift_;
    factor_ = static_cast<uint32_t>(((uint64_t{1} << shift_) + static_cast<uint64_t>(value) - 1) /
                                    static_cast<uint64_t>(value));
  }
  __host__ __device__ constexpr operator int() const { return value_; }
  // n / d for n >= 0. Exact, because factor * value exceeds 2^shift by less than value <= 2^(shift - 31), and n < 2^31.
  friend __host__ __device__ constexpr int operator/(int n, const Divisor& d) {
    return static_cast<int>(static_cast<uint64_t>(n) * d.factor_ >> d.shift_);
  }
  friend __host__ __device__ constexpr int operator%(int n, const Divisor& d) { return n - n / d * d.value_; }

 private:
  int value_ = 1, shift_ = 31;
  uint32_t factor_ = uint32_t{1} << 31;
};

static_assert([] {
  for (const int value : {1, 2, 3, 5, 7, 8, 12, 16, 48, 127, 4095, 4096, 65535, 65536})
    for (const int n : {0, 1, value - 1, value, value + 1, 65535, 1 << 20, (1 << 30) - 1, 0x7fffffff})
      if (n / Divisor(value) != n / value || n % Divisor(value) != n % value) return false;
  return true;
}());

}  // namespace sluice::cuda::tile
