// The work list of the engines: the experts that have rows, cut into blocks of bounded height.
#pragma once
#include "backends/cpu/panels/job.h"

namespace sluice::cpu {

struct RowBlock {
  int64_t expert, row, rows;  // rows of y
  int64_t tile;               // the first of its 16-row tiles, counted over all blocks
};

// Bounds for scratch: an expert with rows has at most one partial block and one partial tile.
int64_t row_blocks_max(const PanelJob& job, int64_t rows_per_block);
int64_t row_tiles_max(const PanelJob& job);

// Writes the blocks in expert order; rows_per_block is a multiple of 16. Returns their number.
int64_t cut_rows(const PanelJob& job, int64_t rows_per_block, RowBlock* out);

// Items that a thread takes at a time. They are adjacent, so a thread reads next what it has prefetched past an item's end. A turn is a
// small part of the whole, so that threads finish together.
inline int64_t items_per_turn(int64_t items, const ThreadPool& pool) {
  return items / (64 * pool.threads()) + 1;
}

}  // namespace sluice::cpu
