// Decides which layers share pages of the cache, and which of the cache's tensors hold a layer's keys and
// values.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "nn/attention.h"

namespace sluice {

// Layers with the same window form a group, because they free a sequence's pages at the same time. All groups
// allocate from one pool, and a page belongs to one group at a time. Layers of different groups can therefore
// share a tensor if their pages have the same size in bytes: each page of the tensor holds keys or values of
// the layer whose group allocated that page.
struct CacheLayout {
  std::vector<int64_t> windows;  // window of each group, ascending; 0 (all positions) comes first
  std::vector<size_t> group;     // group of each layer
  std::vector<size_t> tensor;  // for each layer: index of its key tensor; its value tensor has the same index
  std::vector<int64_t>
      page_bytes;  // for each key tensor: bytes of one page, and of one page of the value tensor
  // for each key tensor: whether there is a value tensor (not with latent attention)
  std::vector<bool> has_values;
  int64_t page_bytes_of_all() const;
};

// page_size: tokens per page.
CacheLayout cache_layout(const std::vector<AttentionConfig>& layers, int64_t page_size);

// The sequences and steps that the cache must have room for.
struct PageNeed {
  int64_t sequences = 1, tokens = 1;  // number of sequences, and tokens of each sequence
  int64_t step_tokens = 1;            // tokens of one step, all sequences together
};
// Upper bound of the pages that the sequences use in all groups together. windows: CacheLayout::windows.
int64_t pages_needed(const std::vector<int64_t>& windows, int64_t page_size, const PageNeed& need);

}  // namespace sluice
