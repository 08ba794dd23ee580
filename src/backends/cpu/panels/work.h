// The engines' list of work: the experts that have rows, divided into blocks of limited height.
#pragma once
#include "backends/cpu/panels/job.h"

namespace sluice::cpu {

struct RowBlock {
  int64_t expert, row, rows;  // rows of y
  int64_t tile;               // the first of its 16-row tiles, counted over all blocks
};

// Upper bounds for scratch memory: an expert with rows has at most one partial block and one partial tile.
int64_t row_blocks_max(const PanelJob& job, int64_t rows_per_block);
int64_t row_tiles_max(const PanelJob& job);

// Writes the blocks in expert order; rows_per_block is a multiple of 16. Returns their number.
int64_t cut_rows(const PanelJob& job, int64_t rows_per_block, RowBlock* out);

// How many items a thread claims at once. They are adjacent, so what a thread prefetches after the end
// of an item is its next item. They are a small part of all items, so that threads finish together.
inline int64_t items_per_turn(int64_t items, const ThreadPool& pool) {
  return items / (64 * pool.threads()) + 1;
}

}  // namespace sluice::cpu
