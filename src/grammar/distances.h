// Shortest paths in a graph whose edges weigh 0 or 1.
#pragma once
#include <cstdint>
#include <limits>
#include <vector>

namespace sluice {

// An edge, stored at the node where it ends.
struct ArrowInto {
  int32_t from, weight;
};
constexpr int32_t kNoWay = std::numeric_limits<int32_t>::max();

// For each node the weight of the lightest path to a node of `ends`; kNoWay: no path exists.
inline std::vector<int32_t> min_weights(const std::vector<std::vector<ArrowInto>>& into,
                                        std::vector<int32_t> ends) {
  std::vector<int32_t> out(into.size(), kNoWay), farther;
  for (const int32_t end : ends) out[static_cast<size_t>(end)] = 0;
  // Visits nodes in order of distance. `ends` has the nodes at the current distance, `farther` the nodes whose distance is larger by 1.
  for (int32_t distance = 0; !ends.empty(); ++distance) {
    while (!ends.empty()) {
      const int32_t at = ends.back();
      ends.pop_back();
      if (out[static_cast<size_t>(at)] != distance) continue;
      for (const ArrowInto& a : into[static_cast<size_t>(at)]) {
        int32_t& known = out[static_cast<size_t>(a.from)];
        if (known <= distance + a.weight) continue;
        known = distance + a.weight;
        (a.weight == 0 ? ends : farther).push_back(a.from);
      }
    }
    ends.swap(farther);
  }
  return out;
}

}  // namespace sluice
