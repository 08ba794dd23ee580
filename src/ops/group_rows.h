#pragma once
#include "ops/op.h"

namespace sluice {

// The outputs of GroupRows.
struct GroupTensors {
  Tensor row_count, row_begin, order, position, tile_count, tiles;
};

// Sorts the (token, slot) pairs by expert, so that each expert's rows are adjacent. The sort is stable: within an
// expert, rows are in the order of tokens, then of slots. A flat slot is f = t * slots + k; ids outside [0,
// experts) are empty slots.
//
//   row_count[e]    slots of expert e                                           i32[experts]
//   row_begin[e]    first row of expert e; row_begin[experts] = rows in use     i32[experts + 1]
//                   row_begin[e + 1] = row_begin[e] + row_count[e] rounded up to row_align
//   order[r]        the flat slot of row r; -1 for padding rows                 i32[rows]
//   position[t, k]  the row of that slot; -1 for an empty slot                  i32[tokens, slots]
//
// With tile_rows > 0, GroupRows also lists the tiles of a grouped GEMM: each expert's rows are cut into chunks of
// tile_rows, of which the last may be shorter. Tiles are ordered by expert, then by row.
//
//   tile_count[0]   number of tiles                                             i32[1]
//   tiles[i]        (expert, first row) of tile i; (-1, -1) beyond the count    i32[tiles_max, 2]
//
// Shapes     ids i32[tokens, slots]; rows = rows(problem) = tokens * slots + experts * (row_align - 1).
//            tiles_max = tiles_max(problem), reached when as many experts as possible have a row and the other rows
//            fill whole tiles. experts <= 2048, slots <= 64, row_align a power of two <= 256, tile_rows 0 or a
//            power of two from 8 to 256, rows < 2^31.
//            tokens == 0 is legal: row_count and row_begin are zeros, and padding rows still get -1.
// Bytes      reads the ids, writes order, position and tiles.
// Errors     make_plan: kInvalidArgument if the problem violates a limit above. run: never fails on data.
// Exactness  equal to the reference.
// Source     the permutation before every grouped GEMM (vLLM moe_align_block_size, TensorRT-LLM expandInputRows).
struct GroupRows {
  static constexpr std::string_view kName = "group_rows";
  static constexpr std::string_view kSummary = "sorts the (token, slot) pairs by expert";
  struct Problem {
    int64_t tokens = 1, slots = 4, experts = 128, row_align = 1, tile_rows = 0;
    bool operator==(const Problem&) const = default;
    template <class V, class P>
    static void fields(V& v, P& p) {
      v("tokens", p.tokens, "rows of ids");
      v("slots", p.slots, "columns of ids");
      v("experts", p.experts, "experts to group by");
      v("row_align", p.row_align, "each expert's rows start at a multiple of this");
      v("tile_rows", p.tile_rows, "rows of a tile in the list of tiles; 0: no list");
    }
  };
  struct Args : GroupTensors {
    Tensor ids;
  };
  static int64_t rows(const Problem& p) { return p.tokens * p.slots + p.experts * (p.row_align - 1); }
  // One tile for each expert that can have a row, and one for every tile_rows of the remaining slots.
  static int64_t tiles_max(const Problem& p) {
    if (p.tile_rows == 0) return 0;
    const int64_t flat = p.tokens * p.slots, first = flat < p.experts ? flat : p.experts;
    return first + (flat - first) / p.tile_rows;
  }
  template <class V>
  static void slots(const Problem& p, V v) {
    v(slot("ids", Role::kIn, DType::kI32, {p.tokens, p.slots}), &Args::ids);
    v(slot("row_count", Role::kOut, DType::kI32, {p.experts}), &Args::row_count);
    v(slot("row_begin", Role::kOut, DType::kI32, {p.experts + 1}), &Args::row_begin);
    v(slot("order", Role::kOut, DType::kI32, {rows(p)}), &Args::order);
    v(slot("position", Role::kOut, DType::kI32, {p.tokens, p.slots}), &Args::position);
    v(slot("tile_count", Role::kOut, DType::kI32, {1}, p.tile_rows > 0), &Args::tile_count);
    v(slot("tiles", Role::kOut, DType::kI32, {tiles_max(p), 2}, p.tile_rows > 0), &Args::tiles);
  }
  // Visits all slots except ids, for operations that compute the ids themselves.
  template <class V>
  static void slots_written(const Problem& p, V v) {
    slots(p, [&](const SlotSpec& spec, Tensor Args::*member) {
      if (member != &Args::ids) v(spec, static_cast<Tensor GroupTensors::*>(member));
    });
  }
  static Refusal validate(const Problem& p);
  static double bytes(const Problem& p);
  static double flops(const Problem&) { return 0; }
  static Problem at_tokens(Problem p, int64_t n) { return p.tokens = n, p; }
  static int64_t tokens_of(const Problem& p) { return p.tokens; }
};

Expectations reference(const GroupRows::Problem& problem, const GroupRows::Args& args);

}  // namespace sluice
