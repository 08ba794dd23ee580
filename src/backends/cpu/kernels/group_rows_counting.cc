// Grouping by a counting sort in blocks of slots. Each block counts its experts, one pass
// converts the counts to first rows, and each block places its slots. The blocks depend only on
// the problem, and an earlier block's rows come before a later block's, so the sort is stable.
//
// Wins    always: it is the only kernel of GroupRows on a CPU. A decode step is one block and wakes no thread.
// Limits  none beyond the contract.
// Source  original; the contract is ops/group_rows.h.
#include <algorithm>
#include <utility>

#include "backends/cpu/card.h"
#include "ops/group_rows.h"

namespace sluice::cpu {
namespace {

using Problem = GroupRows::Problem;
using Args = GroupRows::Args;

// Sorting a block of this many slots takes less time than waking another thread.
constexpr int64_t kBlockSlots = 16384;
constexpr int64_t kBlocksMax = 32;

int64_t blocks_of(const Problem& p) {
  return std::clamp<int64_t>(p.tokens * p.slots / kBlockSlots, 1, kBlocksMax);
}

struct Span {
  int64_t begin, end;
};
Span block_slots(const Problem& p, int64_t block) {
  const int64_t flat = p.tokens * p.slots, blocks = blocks_of(p);
  return {flat * block / blocks, flat * (block + 1) / blocks};
}

bool grouped(const Problem& p, int32_t id) { return id >= 0 && id < p.experts; }

void count(const Problem& p, const int32_t* ids, Span slots, int32_t* counts) {
  std::fill_n(counts, p.experts, 0);
  for (int64_t f = slots.begin; f < slots.end; ++f)
    if (grouped(p, ids[f])) ++counts[ids[f]];
}

// Converts the counts [blocks, experts] to the row at which each block starts in each expert. Writes row_count and row_begin.
void assign_rows(const Problem& p, const Args& a, int32_t* counts) {
  int32_t* total = a.row_count.as<int32_t>();
  int32_t* begin = a.row_begin.as<int32_t>();
  std::fill_n(total, p.experts, 0);
  for (int64_t block = 0; block < blocks_of(p); ++block)
    for (int64_t e = 0; e < p.experts; ++e) total[e] += counts[block * p.experts + e];
  const auto align = static_cast<int32_t>(p.row_align);
  begin[0] = 0;
  for (int64_t e = 0; e < p.experts; ++e) begin[e + 1] = begin[e] + (total[e] + align - 1) / align * align;
  for (int64_t e = 0; e < p.experts; ++e) total[e] = begin[e];
  for (int64_t block = 0; block < blocks_of(p); ++block)
    for (int64_t e = 0; e < p.experts; ++e)
      total[e] += std::exchange(counts[block * p.experts + e], total[e]);
  for (int64_t e = 0; e < p.experts; ++e) total[e] -= begin[e];
}

void place(const Problem& p, const Args& a, Span slots, int32_t* next_row) {
  const int32_t* ids = a.ids.as<const int32_t>();
  int32_t* order = a.order.as<int32_t>();
  int32_t* position = a.position.as<int32_t>();
  for (int64_t f = slots.begin; f < slots.end; ++f) {
    position[f] = -1;
    if (!grouped(p, ids[f])) continue;
    const int32_t row = next_row[ids[f]]++;
    position[f] = row;
    order[row] = static_cast<int32_t>(f);
  }
}

// Rows without a slot: the ends of the experts' groups, and the rows after the last group.
void mark_empty_rows(const Problem& p, const Args& a) {
  const int32_t* total = a.row_count.as<const int32_t>();
  const int32_t* begin = a.row_begin.as<const int32_t>();
  int32_t* order = a.order.as<int32_t>();
  for (int64_t e = 0; e < p.experts; ++e) std::fill(order + begin[e] + total[e], order + begin[e + 1], -1);
  std::fill(order + begin[p.experts], order + GroupRows::rows(p), -1);
}

void list_tiles(const Problem& p, const Args& a) {
  const int32_t* total = a.row_count.as<const int32_t>();
  const int32_t* begin = a.row_begin.as<const int32_t>();
  const auto step = static_cast<int32_t>(p.tile_rows);
  int32_t* tiles = a.tiles.as<int32_t>();
  int32_t* at = tiles;
  for (int32_t e = 0; e < p.experts; ++e)
    for (int32_t row = 0; row < total[e]; row += step) *at++ = e, *at++ = begin[e] + row;
  *a.tile_count.as<int32_t>() = static_cast<int32_t>((at - tiles) / 2);
  std::fill(at, tiles + 2 * GroupRows::tiles_max(p), -1);
}

Refusal supports(const Problem&, const DeviceInfo&) { return {}; }

double cost_us(const Problem& p, const DeviceInfo& d) {
  const auto slots = static_cast<double>(p.tokens * p.slots);
  const auto blocks = static_cast<double>(blocks_of(p));
  return d.launch_us + 0.003 * slots / std::min<double>(blocks, d.cores) + 0.002 * p.experts * (1 + blocks);
}

size_t workspace_bytes(const Problem& p, const DeviceInfo&) {
  return static_cast<size_t>(blocks_of(p) * p.experts) * sizeof(int32_t);
}

Status enqueue(const Problem& p, const Args& a, Workspace w, Stream s) {
  return submit(s, [p, a, w](Queue& q) {
    auto* counts = reinterpret_cast<int32_t*>(w.data);  // [blocks, experts]
    q.pool->run(blocks_of(p), 1, [&](int64_t block, int64_t, int) {
      count(p, a.ids.as<const int32_t>(), block_slots(p, block), counts + block * p.experts);
    });
    assign_rows(p, a, counts);
    q.pool->run(blocks_of(p), 1, [&](int64_t block, int64_t, int) {
      place(p, a, block_slots(p, block), counts + block * p.experts);
    });
    mark_empty_rows(p, a);
    if (p.tile_rows > 0) list_tiles(p, a);
  });
}

}  // namespace

extern const Candidate<GroupRows> group_rows_counting = {
    .name = "cpu.group_rows.counting",
    .backend = Backend::kCpu,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = workspace_bytes,
    .enqueue = enqueue,
    .batch_invariant = true,
};

}  // namespace sluice::cpu
