// The parts of a case suite. Each operation specializes Suite in tests/cases/<op>.h.
#pragma once
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "base/random.h"
#include "harness/memory.h"

namespace sluice::test {

enum class Fill : uint8_t {
  kNormal,      // floats from a normal distribution
  kAllEqual,    // every float the same: ties everywhere
  kZerosMixed,  // -0 and +0
  kSomeNan,     // a few NaN among the numbers
  kRareNan,     // one in some thousand numbers
  kInfinite,    // a few infinities
  kTiny,        // numbers around and below the smallest normal float
  kHuge,        // numbers near the largest float
  kEmpty,       // no work: all ids -1, all experts empty
  kSkewed,      // everything on one expert, one sequence or one row
};

template <class Op>
struct Case {
  typename Op::Problem problem;
  const char* why;
  Fill fill = Fill::kNormal;
  Spread spread = Spread::kContiguous;
};

// Specialize with:
//   static std::vector<Case<Op>> cases();
//   static void fill(const Op::Problem&, Fill, HostArgs<Op>&, Random&);   sets the inputs; outputs are already poisoned
//   static Op::Problem random(Random&);                                   legal and illegal problems for the fuzzer
template <class Op>
struct Suite;

template <class F>
void set_each(const Tensor& t, F f) {
  const int64_t row = t.rank && t.shape[0] ? elements_of(t) / t.shape[0] : 0;
  for (int64_t r = 0; t.rank && r < t.shape[0]; ++r) {
    for (int64_t c = 0; c < row; ++c) {
      const int64_t i = r * t.stride[0] + c;
      switch (t.dtype) {
        case DType::kF32:
          t.as<float>()[i] = static_cast<float>(f(r, c));
          break;
        case DType::kBF16:
          t.as<BF16>()[i] = to_bf16(static_cast<float>(f(r, c)));
          break;
        case DType::kE4M3:
          t.as<E4M3>()[i] = to_e4m3(static_cast<float>(f(r, c)));
          break;
        case DType::kI32:
          t.as<int32_t>()[i] = static_cast<int32_t>(f(r, c));
          break;
        case DType::kI64:
          t.as<int64_t>()[i] = static_cast<int64_t>(f(r, c));
          break;
        case DType::kI16:
          t.as<int16_t>()[i] = static_cast<int16_t>(f(r, c));
          break;
        default:
          t.as<uint8_t>()[i] = static_cast<uint8_t>(f(r, c));
          break;
      }
    }
  }
}

// Fills a float tensor according to `fill`; does nothing for an absent tensor.
inline void fill_floats(const Tensor& t, Fill fill, Random& random, double scale = 1) {
  if (!t.present()) return;
  set_each(t, [&](int64_t, int64_t) -> double {
    const double x = random.normal() * scale;
    const bool rare = random.integer(0, 15) == 0;
    switch (fill) {
      case Fill::kAllEqual:
        return 0.5;
      case Fill::kZerosMixed:
        return random.integer(0, 1) ? 0.0 : -0.0;
      case Fill::kSomeNan:
        return rare ? std::numeric_limits<double>::quiet_NaN() : x;
      case Fill::kRareNan:
        return random.integer(0, 8191) == 0 ? std::numeric_limits<double>::quiet_NaN() : x;
      case Fill::kInfinite:
        return rare ? std::copysign(std::numeric_limits<double>::infinity(), x) : x;
      case Fill::kTiny:
        return std::ldexp(x, -static_cast<int>(random.integer(110, 135)));
      case Fill::kHuge:
        return std::ldexp(x, static_cast<int>(random.integer(90, 120)));
      default:
        return x;
    }
  });
}

inline DType any_float(Random& random) { return random.integer(0, 1) ? DType::kF32 : DType::kBF16; }
inline bool coin(Random& random) { return random.integer(0, 1) != 0; }
template <class T>
T one_of(Random& random, std::span<const T> values) {
  return values[static_cast<size_t>(random.integer(0, static_cast<int64_t>(values.size()) - 1))];
}
inline int64_t one_of(Random& random, std::initializer_list<int64_t> values) {
  return one_of(random, std::span<const int64_t>(values.begin(), values.size()));
}

// Adds an unaligned copy of each case with strided rows; its rows may begin at any element.
template <class Op>
void add_unaligned(std::vector<Case<Op>>* cases) {
  const size_t count = cases->size();
  for (size_t i = 0; i < count; ++i) {
    if ((*cases)[i].spread != Spread::kStridedRows) continue;
    cases->push_back((*cases)[i]);
    cases->back().problem.x_unaligned = true;
  }
}

}  // namespace sluice::test
