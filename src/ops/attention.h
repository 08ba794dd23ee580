#pragma once
#include "ops/cache_type.h"
#include "ops/op.h"

namespace sluice {

// Causal grouped-query attention over a paged cache, with sinks and a sliding window.
//
// Sequence s owns the query rows q_begin[s] .. q_begin[s + 1] - 1. Its last row is the token at position
// kv_len[s] - 1, whose key is already in the cache. A query at position p attends to the positions j <= p;
// if window > 0, only to j > p - window. Position j of sequence s lies in page page_table[s, j / page_size].
//
//   score_j = scale * q . k_j        (head h of q reads kv head h / (heads / kv_heads))
//   y       = sum_j e^(score_j - m) v_j / (sum_j e^(score_j - m) + e^(sink[h] - m)),  m the largest score or sink
//   with the sink term only if `sinks`
//
// With rows_max > 0, the caller guarantees that no sequence owns more than rows_max rows. Rows of a longer sequence are
// unspecified. With settled, the caller guarantees that no launch writes page_table, q_begin or kv_len (they are copied before all
// launches) and that no launch since that copy has written cache positions before a sequence's first row.
// sinks are weights: only the loader of a model writes them.
//
// Rows without a sequence (before q_begin[0], at or beyond q_begin[sequences]) are not written. Positions whose page number is
// outside [0, pages) are absent: no query attends to them. If no position is left, as for a query at a position below zero, or if
// every score and the sink are -inf, y is zero.
//
// Shapes     q, y [tokens, heads, head_dim], rows may be strided; k_cache, v_cache [pages, kv_heads,
//            page_size, head_dim]: a page's rows of one head are adjacent; page_table i32[sequences, pages_per_seq];
//            q_begin i32[sequences + 1], ascending; kv_len i32[sequences]; sinks [heads]. kv_len <= pages_per_seq *
//            page_size; positions beyond that are absent. heads a multiple of kv_heads; head_dim from 1 to 512; sequences >= 1;
//            tokens >= 0; window >= 0; scale from 2^-100 to 2^100.
// Types      q and y both bf16 or both f32; caches in q's type, or e4m3 (field cache); sinks bf16 or f32 (field s). f32
//            arithmetic, one rounding. Keys and values are the caches' contents: reading e4m3 is exact.
// NaN        in an attended key, value, query or sink propagates as the formula says; a position that a query does not attend to
//            never affects it.
// Bytes      the attended keys and values once per sequence, q and y once.
// Errors     make_plan: kInvalidArgument if the problem violates a limit above. run: never fails on data.
// Exactness  per element, with n attended positions, p the weights and u = 2^-24:
//              (e^(2 d) - 1 + (2 n + 32) u e^(2 d)) * sum_j p_j |v_j| + w e^(2 d) * sum_j p_j (|v_j| + |y|) + half an ulp
//              d = (head_dim + 16) u S,   S = the larger of max_j scale sum |q||k_j| and |sink|
//            d bounds the error of an exponent: computing a score takes head_dim + 4 roundings, and subtracting m and converting to
//            base 2 lose a few u of numbers up to 2 S. A weight is then off by a factor of at most e^d, and a ratio of two sums of weights by a
//            factor of at most e^(2 d); each sum adds one or two roundings per term. w = 2^-8 if q is bf16, else 0: a weight may be
//            rounded to bf16, an error of at most 2^-8 / (1 + 2^-8), either where it multiplies a value, or both there and in the
//            sum of weights. If q is bf16, weights below 2^-100 of the largest may be treated as zero, and with e4m3 caches a
//            weight may also be rounded to a multiple of 2^-39 of the largest; therefore 2^-100, or 2^-40, times sum_j |v_j| over
//            the sum of weights is added. Numbers below 2^-126 may be flushed to zero. If d or a sum overflows f32, the result is
//            unspecified.
// Source     openai/gpt-oss gpt_oss/torch/model.py, sdpa; Kwon et al., "PagedAttention" (2023).
struct Attention {
  static constexpr std::string_view kName = "attention";
  static constexpr std::string_view kSummary =
      "causal grouped-query attention over a paged cache, with sinks and a sliding window";
  struct Problem {
    int64_t tokens = 1, sequences = 1, heads = 64, kv_heads = 8, head_dim = 64;
    int64_t pages = 64, page_size = 16, pages_per_seq = 64, window = 0, rows_max = 0;
    double scale = 0.125;
    DType q = DType::kBF16, s = DType::kBF16;
    CacheType cache = CacheType::kSame;
    bool sinks = false, settled = false;
    bool operator==(const Problem&) const = default;
    template <class V, class P>
    static void fields(V& v, P& p) {
      v("tokens", p.tokens, "query rows of all sequences");
      v("sequences", p.sequences, "sequences of this step");
      v("heads", p.heads, "query heads");
      v("kv_heads", p.kv_heads, "key and value heads");
      v("head_dim", p.head_dim, "elements of a head");
      v("pages", p.pages, "pages of the cache");
      v("page_size", p.page_size, "tokens of a page");
      v("pages_per_seq", p.pages_per_seq, "columns of the page table");
      v("window", p.window, "positions that a query sees; 0: all");
      v("rows_max", p.rows_max, "upper bound of a sequence's rows; 0: any number");
      v("scale", p.scale, "multiplies the scores");
      v("q", p.q, "type of q and y");
      v("s", p.s, "type of the sinks");
      v("cache", p.cache, "type of the caches: same (as q) or e4m3");
      v("sinks", p.sinks, "each head has a sink");
      v("settled", p.settled, "no launch writes the tables or the cache positions before the rows");
    }
  };
  struct Args {
    Tensor q, k_cache, v_cache, page_table, q_begin, kv_len, sinks, y;
  };
  template <class V>
  static void slots(const Problem& p, V v) {
    const auto strided = Rows::kMayBeStrided;
    const DType cache = cache_dtype(p.cache, p.q);
    v(slot("q", Role::kIn, p.q, {p.tokens, p.heads, p.head_dim}, true, strided), &Args::q);
    v(slot("k_cache", Role::kIn, cache, {p.pages, p.kv_heads, p.page_size, p.head_dim}), &Args::k_cache);
    v(slot("v_cache", Role::kIn, cache, {p.pages, p.kv_heads, p.page_size, p.head_dim}), &Args::v_cache);
    v(slot("page_table", Role::kIn, DType::kI32, {p.sequences, p.pages_per_seq}), &Args::page_table);
    v(slot("q_begin", Role::kIn, DType::kI32, {p.sequences + 1}), &Args::q_begin);
    v(slot("kv_len", Role::kIn, DType::kI32, {p.sequences}), &Args::kv_len);
    v(slot("sinks", Role::kIn, p.s, {p.heads}, p.sinks), &Args::sinks);
    v(slot("y", Role::kOut, p.q, {p.tokens, p.heads, p.head_dim}, true, strided), &Args::y);
  }
  static Refusal validate(const Problem& p);
  static double bytes(const Problem& p);  // an upper bound: full page tables
  static double flops(const Problem& p);
  static Problem at_tokens(Problem p, int64_t n) { return p.tokens = n, p; }
  static int64_t tokens_of(const Problem& p) { return p.tokens; }
};

Expectations reference(const Attention::Problem& problem, const Attention::Args& args);

}  // namespace sluice
