// Whole numbers of a tensor, to compare with those that are written down.
#pragma once
#include <cstdint>
#include <vector>

#include "base/tensor.h"

namespace sluice::test {

using Numbers = std::vector<int32_t>;
inline Numbers numbers(const Tensor& t) { return {t.as<int32_t>(), t.as<int32_t>() + elements_of(t)}; }

}  // namespace sluice::test
