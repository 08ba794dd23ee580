// A tensor's integers as a vector, to compare them with lists in a test.
#pragma once
#include <cstdint>
#include <vector>

#include "base/tensor.h"

namespace sluice::test {

using Numbers = std::vector<int32_t>;
inline Numbers numbers(const Tensor& t) { return {t.as<int32_t>(), t.as<int32_t>() + elements_of(t)}; }

}  // namespace sluice::test
