// Paths in a graph whose edges weigh 0 or 1, and whose cycles weigh at least 1.
#pragma once
#include <algorithm>
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

// For each node the weight of the heaviest path to a node of `ends`; kNoWay: no path exists, or there is no heaviest one. Every node must
// have a path to a node of `ends`.
inline std::vector<int32_t> max_weights(const std::vector<std::vector<ArrowInto>>& into,
                                        const std::vector<int32_t>& ends) {
  std::vector<int32_t> out(into.size(), 0), left(into.size(), 0),
      ready;  // left: edges to nodes that are not done
  for (const auto& arrows : into)
    for (const ArrowInto& a : arrows) ++left[static_cast<size_t>(a.from)];
  std::vector<uint8_t> done(into.size(), 0);
  for (const int32_t end : ends)
    if (left[static_cast<size_t>(end)] == 0) ready.push_back(end);
  while (!ready.empty()) {
    const auto at = static_cast<size_t>(ready.back());
    ready.pop_back();
    done[at] = 1;
    for (const ArrowInto& a : into[at]) {
      const auto from = static_cast<size_t>(a.from);
      out[from] = std::max(out[from], out[at] + a.weight);
      if (--left[from] == 0) ready.push_back(a.from);
    }
  }
  // A node that is not done leads into a cycle.
  for (size_t i = 0; i < out.size(); ++i)
    if (done[i] == 0) out[i] = kNoWay;
  return out;
}

// For each node 64 * `row` bits: bit n is set if a path to a node of `ends` weighs n.
inline std::vector<uint64_t> all_weights(const std::vector<std::vector<ArrowInto>>& into,
                                         const std::vector<int32_t>& ends, int64_t row) {
  const auto words = static_cast<size_t>(row);
  const int64_t bits = 64 * row;
  std::vector<uint64_t> out(into.size() * words, 0);
  std::vector<int32_t> now = ends, next;
  for (int64_t weight = 0; weight < bits && !now.empty(); ++weight) {
    const auto add = [&](int32_t node, int64_t n, std::vector<int32_t>* nodes) {
      if (n >= bits) return;
      uint64_t& word = out[static_cast<size_t>(node) * words + static_cast<size_t>(n / 64)];
      const uint64_t bit = uint64_t{1} << (n % 64);
      if (word & bit) return;
      word |= bit;
      nodes->push_back(node);
    };
    if (weight == 0) {
      now.clear();
      for (const int32_t end : ends) add(end, 0, &now);
    }
    while (!now.empty()) {
      const int32_t at = now.back();
      now.pop_back();
      for (const ArrowInto& a : into[static_cast<size_t>(at)])
        add(a.from, weight + a.weight, a.weight == 0 ? &now : &next);
    }
    now.swap(next);
  }
  return out;
}

}  // namespace sluice
