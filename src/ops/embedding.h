#pragma once
#include "ops/op.h"

namespace sluice {

// Looks up the rows of tokens in a table.
//
//   y[t, :] = table[ids[t], :]; zeros when ids[t] is outside [0, vocab)
//
// Shapes     ids i32[tokens], table [vocab, hidden], y [tokens, hidden]; rows of y may be strided.
//            tokens >= 0; vocab from 1 to 2^31 - 1, hidden from 1 to 65536.
// Types      table bf16 or f32, y bf16 or f32.
// Bytes      reads and writes `tokens` rows.
// Errors     make_plan: kInvalidArgument if the problem violates a limit above. run: never fails on data.
// Exactness  equal to the reference; bf16 from f32 rounds to nearest, ties to even (above the largest finite
//            number: infinity).
// Source     torch.nn.Embedding.
struct Embedding {
  static constexpr std::string_view kName = "embedding";
  static constexpr std::string_view kSummary = "looks up the rows of tokens in a table";
  struct Problem {
    int64_t tokens = 1, vocab = 201088, hidden = 2880;
    DType table = DType::kBF16, y = DType::kBF16;
    bool operator==(const Problem&) const = default;
    template <class V, class P>
    static void fields(V& v, P& p) {
      v("tokens", p.tokens, "ids to look up");
      v("vocab", p.vocab, "rows of the table");
      v("hidden", p.hidden, "columns of the table");
      v("table", p.table, "type of the table");
      v("y", p.y, "type of y");
    }
  };
  struct Args {
    Tensor ids, table, y;
  };
  template <class V>
  static void slots(const Problem& p, V v) {
    v(slot("ids", Role::kIn, DType::kI32, {p.tokens}), &Args::ids);
    v(slot("table", Role::kIn, p.table, {p.vocab, p.hidden}), &Args::table);
    v(slot("y", Role::kOut, p.y, {p.tokens, p.hidden}, true, Rows::kMayBeStrided), &Args::y);
  }
  static Refusal validate(const Problem& p);
  static double bytes(const Problem& p);
  static double flops(const Problem&) { return 0; }
  static Problem at_tokens(Problem p, int64_t n) { return p.tokens = n, p; }
  static int64_t tokens_of(const Problem& p) { return p.tokens; }
};

Expectations reference(const Embedding::Problem& problem, const Embedding::Args& args);

}  // namespace sluice
