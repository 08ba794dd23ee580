// Shortest ways in a graph whose steps weigh 0 or 1.
#pragma once
#include <cstdint>
#include <limits>
#include <vector>

namespace sluice {

// A step, kept at the node where it ends.
struct ArrowInto {
  int32_t from, weight;
};
constexpr int32_t kNoWay = std::numeric_limits<int32_t>::max();

// From each node the least weight of a way to one of `ends`; kNoWay: there is none.
inline std::vector<int32_t> least_weights(const std::vector<std::vector<ArrowInto>>& into,
                                          std::vector<int32_t> ends) {
  std::vector<int32_t> out(into.size(), kNoWay), farther;
  for (const int32_t end : ends) out[static_cast<size_t>(end)] = 0;
  // Node by node in the order of distances: `ends` holds those of this distance, `farther` those of the next one.
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
