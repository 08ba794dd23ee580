// Bounds of route_topk that readers of models check, too.
#pragma once
#include <cstdint>

namespace sluice {

constexpr int64_t kRoutedExpertsMax = 1024, kRoutedTopKMax = 32;

}  // namespace sluice
