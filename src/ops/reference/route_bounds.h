// Limits of route_topk that are also checked when a model's config is read.
#pragma once
#include <cstdint>

namespace sluice {

constexpr int64_t kRoutedExpertsMax = 1024, kRoutedTopKMax = 32;

}  // namespace sluice
