#pragma once
#include "ops/op.h"

namespace sluice {

// Sorts the (token, slot) pairs by expert, so that each expert's rows lie together. Stable: within an expert,
// by token, then by slot. A flat slot is f = t * slots + k; ids outside [0, experts) are empty slots.
//
//   row_count[e]    slots of expert e                                           i32[experts]
//   row_begin[e]    first row of expert e; row_begin[experts] = rows in use     i32[experts + 1]
//                   row_begin[e + 1] = row_begin[e] + row_count[e] rounded up to row_align
//   order[r]        the flat slot of row r; -1 for rows of no slot, up to rows  i32[rows]
//   position[t, k]  the row of that slot; -1 for an empty slot                  i32[tokens, slots]
//
// Shapes     ids i32[tokens, slots]; rows = rows(problem) = tokens * slots + experts * (row_align - 1).
//            experts <= 2048, slots <= 64, row_align a power of two <= 256, rows < 2^31.
//            tokens == 0 is legal: row_count and row_begin are zeros, and rows of padding get their -1
//            all the same.
// Bytes      reads the ids, writes order and position.
// Errors     make_plan: kInvalidArgument if a bound is broken. run: never fails on data.
// Exactness  equal.
// Source     the permutation in front of every grouped GEMM (vLLM moe_align_block_size, CUTLASS's expand).
struct GroupRows {
  static constexpr std::string_view kName = "group_rows";
  static constexpr std::string_view kSummary = "sorts the (token, slot) pairs by expert";
  struct Problem {
    int64_t tokens = 1, slots = 4, experts = 128, row_align = 1;
    bool operator==(const Problem&) const = default;
    template <class V, class P>
    static void fields(V& v, P& p) {
      v("tokens", p.tokens, "rows of ids");
      v("slots", p.slots, "columns of ids");
      v("experts", p.experts, "experts to group by");
      v("row_align", p.row_align, "each expert's rows start at a multiple of this");
    }
  };
  struct Args {
    Tensor ids, row_count, row_begin, order, position;
  };
  static int64_t rows(const Problem& p) { return p.tokens * p.slots + p.experts * (p.row_align - 1); }
  template <class V>
  static void slots(const Problem& p, V v) {
    v(slot("ids", Role::kIn, DType::kI32, {p.tokens, p.slots}), &Args::ids);
    v(slot("row_count", Role::kOut, DType::kI32, {p.experts}), &Args::row_count);
    v(slot("row_begin", Role::kOut, DType::kI32, {p.experts + 1}), &Args::row_begin);
    v(slot("order", Role::kOut, DType::kI32, {rows(p)}), &Args::order);
    v(slot("position", Role::kOut, DType::kI32, {p.tokens, p.slots}), &Args::position);
  }
  static Refusal validate(const Problem& p);
  static double bytes(const Problem& p);
  static double flops(const Problem&) { return 0; }
  static Problem at_tokens(Problem p, int64_t n) { return p.tokens = n, p; }
  static int64_t tokens_of(const Problem& p) { return p.tokens; }
};

Expectations reference(const GroupRows::Problem& problem, const GroupRows::Args& args);

}  // namespace sluice
