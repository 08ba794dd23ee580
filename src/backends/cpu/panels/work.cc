#include "backends/cpu/panels/work.h"

#include <algorithm>

namespace sluice::cpu {

int64_t row_blocks_max(const PanelJob& job, int64_t rows_per_block) {
  return job.rows / rows_per_block + std::min(job.experts, job.rows);
}

int64_t row_tiles_max(const PanelJob& job) { return job.rows / 16 + std::min(job.experts, job.rows); }

int64_t cut_rows(const PanelJob& job, int64_t rows_per_block, RowBlock* out) {
  int64_t count = 0, tile = 0;
  for (int64_t e = 0; e < job.experts; ++e) {
    const int64_t begin = job.first_row(e), rows = job.row_count_of(e);
    for (int64_t done = 0; done < rows; done += rows_per_block) {
      const int64_t here = std::min(rows_per_block, rows - done);
      out[count++] = {e, begin + done, here, tile};
      tile += (here + 15) / 16;
    }
  }
  return count;
}

}  // namespace sluice::cpu
