// What the engines iterate over: the experts that have rows, cut into parts of bounded height.
#pragma once
#include "backends/cpu/panels/job.h"

namespace sluice::cpu {

struct RowBlock {
  int64_t expert, row, rows;  // rows of y
  int64_t tile;               // the first of its 16-row tiles, counted over all blocks
};

// Bounds for scratch: an expert with rows has one ragged block and one ragged tile at most.
int64_t row_blocks_max(const PanelJob& job, int64_t rows_per_block);
int64_t row_tiles_max(const PanelJob& job);

// Writes the blocks in the order of experts; rows_per_block is a multiple of 16. Returns how many.
int64_t cut_rows(const PanelJob& job, int64_t rows_per_block, RowBlock* out);

// Items that a thread takes at a time. They lie together, so that what one prefetches past its end is what it
// reads next; a turn is a small part of the whole, so that threads end together.
inline int64_t items_per_turn(int64_t items, const ThreadPool& pool) {
  return items / (64 * pool.threads()) + 1;
}

}  // namespace sluice::cpu
