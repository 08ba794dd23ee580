// Which layers take pages of the cache together, and which tensors of it hold a layer's keys and values.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "nn/attention.h"

namespace sluice {

// Layers that see equally many positions are a group: they need the pages of a sequence for equally long. All groups take pages
// of one pool, and a page belongs to one group at a time. So layers of different groups share a tensor where a page of theirs
// has as many bytes: each page of it holds the keys or values of the layer whose group has taken that page.
struct CacheLayout {
  std::vector<int64_t> windows;     // of each group, ascending; 0, which sees all positions, stands first
  std::vector<size_t> group;        // of each layer
  std::vector<size_t> tensor;       // of each layer: its tensor of keys, and that of values
  std::vector<int64_t> page_bytes;  // of each tensor of keys: one page. That of values has as many
  int64_t page_bytes_of_all() const;
};

// page_size: tokens of a page.
CacheLayout cache_layout(const std::vector<AttentionConfig>& layers, int64_t page_size);

// Pages of all groups together that sequences hold at most.
struct PageNeed {
  int64_t sequences = 1, tokens = 1;  // of each sequence
  int64_t step_tokens = 1;            // of one step, all sequences together
};
int64_t pages_needed(const std::vector<int64_t>& windows, int64_t page_size, const PageNeed& need);

}  // namespace sluice
