#include "nn/cache_layout.h"

#include <algorithm>

namespace sluice {
namespace {

int64_t page_bytes_of(const AttentionConfig& c, int64_t page_size) {
  return bytes_of(c.cache_type(), page_size * c.kv_heads * c.head_dim);
}

}  // namespace

int64_t CacheLayout::page_bytes_of_all() const {
  int64_t out = 0;
  for (size_t at = 0; at < page_bytes.size(); ++at) out += (has_values[at] ? 2 : 1) * page_bytes[at];
  return out;
}

CacheLayout cache_layout(const std::vector<AttentionConfig>& layers, int64_t page_size) {
  CacheLayout out;
  for (const AttentionConfig& c : layers) out.windows.push_back(c.window);
  if (layers.empty()) out.windows.push_back(0);
  std::ranges::sort(out.windows);
  out.windows.erase(std::unique(out.windows.begin(), out.windows.end()), out.windows.end());
  // A layer gets the first tensor of its page size and kind that no other layer of its group uses.
  std::vector<std::vector<bool>> taken;  // [tensors][groups]
  for (const AttentionConfig& c : layers) {
    const auto group =
        static_cast<size_t>(std::ranges::lower_bound(out.windows, c.window) - out.windows.begin());
    const int64_t bytes = page_bytes_of(c, page_size);
    const bool values = !c.latent;
    const auto fits = [&](size_t at) {
      return out.page_bytes[at] == bytes && out.has_values[at] == values && !taken[at][group];
    };
    size_t at = 0;
    while (at < taken.size() && !fits(at)) ++at;
    if (at == taken.size()) {
      taken.emplace_back(out.windows.size());
      out.page_bytes.push_back(bytes);
      out.has_values.push_back(values);
    }
    taken[at][group] = true;
    out.group.push_back(group);
    out.tensor.push_back(at);
  }
  return out;
}

// If a step begins at position `first` of a sequence, the sequence still needs the page of `first` and the
// pages of the window - 1 positions before `first`. Of these, at most pages_of(window - 1) lie before the
// page of `first`.
int64_t pages_needed(const std::vector<int64_t>& windows, int64_t page_size, const PageNeed& need) {
  const auto pages_of = [&](int64_t tokens) { return (tokens + page_size - 1) / page_size; };
  const int64_t all = need.sequences * pages_of(need.tokens);
  int64_t pages = 0;
  for (const int64_t window : windows) {
    const int64_t begun = need.sequences * (2 * page_size - 2) + need.step_tokens;
    const int64_t seen = need.sequences * pages_of(window - 1) + begun / page_size;
    pages += window == 0 ? all : std::min(all, seen);
  }
  return pages;
}

}  // namespace sluice
