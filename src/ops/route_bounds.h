// Bounds of route_topk that the readers of model configs also check.
#pragma once
#include <cstdint>

namespace sluice {

constexpr int64_t kRoutedExpertsMax = 1024, kRoutedTopKMax = 32;

}  // namespace sluice
