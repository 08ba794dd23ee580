// Decides which layers share pages of the cache, and which of its tensors hold a layer's keys and values.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "nn/attention.h"

namespace sluice {

// Layers with the same window form a group, because they keep a sequence's pages for the same time. All
// groups share one pool, and a page belongs to one group at a time. So layers of different groups share a
// tensor if their pages have the same size in bytes: each page of the tensor holds keys or values of the
// layer whose group has taken that page.
struct CacheLayout {
  std::vector<int64_t>
      windows;                // window of each group, ascending; a group that sees all positions (0) is first
  std::vector<size_t> group;  // group of each layer
  std::vector<size_t> tensor;  // for each layer: index of its tensor of keys and of its tensor of values
  std::vector<int64_t>
      page_bytes;  // bytes of a page of each tensor of keys, and of the matching tensor of values, if there is one
  std::vector<bool> has_values;  // for each tensor; layers with latent attention have no values
  int64_t page_bytes_of_all() const;
};

// page_size: tokens per page.
CacheLayout cache_layout(const std::vector<AttentionConfig>& layers, int64_t page_size);

// Upper bound of the pages that the sequences hold in all groups together.
struct PageNeed {
  int64_t sequences = 1, tokens = 1;  // tokens of each sequence
  int64_t step_tokens = 1;            // tokens of one step, all sequences together
};
int64_t pages_needed(const std::vector<int64_t>& windows, int64_t page_size, const PageNeed& need);

}  // namespace sluice
