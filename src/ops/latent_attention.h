#pragma once
#include "ops/op.h"

namespace sluice {

// Causal multi-head latent attention over a paged cache of latents. Two matrices per head compute the keys and values of all
// heads from one short row c per position. Next to c, the cache holds a rotary key r that all heads share.
//
// Sequences, pages and causality are as in ops/attention.h, without window and sinks: sequence s owns the
// query rows q_begin[s] .. q_begin[s + 1] - 1; its last row is at position kv_len[s] - 1, whose cache row is already
// written; a query at position p attends to the positions j <= p; position j lies in page page_table[s, j / page_size].
// A cache row is (c, r): `rank` and `rope` elements.
//
//   score_j = scale * (a . K_h c_j + b . r_j)   (a, b) the `nope` and the `rope` elements of head h of q,
//                                               K_h the first `nope` rows of kv_b[h]
//   y       = V_h sum_j p_j c_j                 p = softmax(score), V_h the last `v_dim` rows of kv_b[h]
//
// Kernels are meant to absorb K_h into a (a' = a K_h), so that a position costs one dot product with its cache row.
//
// With rows_max > 0, the caller guarantees that no sequence owns more than rows_max rows. Rows of a longer sequence
// are unspecified.
//
// Rows without a sequence are not written. Positions whose page number is outside [0, pages) are absent: no query attends to
// them. If no position is left, y is zero.
//
// Shapes     q [tokens, heads, nope + rope], y [tokens, heads, v_dim], rows may be strided; kv_b [heads, nope +
//            v_dim, rank]; cache [pages, 1, page_size, rank + rope]; page_table i32[sequences, pages_per_seq];
//            q_begin i32[sequences + 1], ascending; kv_len i32[sequences]. kv_len <= pages_per_seq *
//            page_size; positions beyond that are absent. heads from 1 to 4096; rank, nope, rope, v_dim from 1 to 1024, and rank
//            + rope up to 1024; sequences >= 1; tokens >= 0; rows_max >= 0; scale from 2^-100 to 2^100.
// Types      q, cache and y all bf16 or all f32; kv_b bf16 or f32. f32 arithmetic, one rounding, and the roundings that Exactness
//            allows.
// NaN        in an attended row, a query or the head's weights propagates as the formula says; a position that a query does not
//            attend to never affects it. An infinity in any of them makes that head of that row unspecified.
// Bytes      the attended rows once per sequence, kv_b, q and y once.
// Errors     make_plan: kInvalidArgument if the problem violates a limit above. run: never fails on data.
// Exactness  per element, with n attended positions and u = 2^-24:
//              (e^(2 d) - 1 + ((3 n + rank + 40) u + w) e^(2 d)) * sum_k |V_dk| sum_j p_j |c_jk| + half an ulp
//              d = (nope + rank + rope + 24) u S + e,
//              S = max_j scale (sum_i sum_k |a_i||K_ik||c_jk| + sum |b||r_j|)
//            A score adds `rank` sums of `nope` products each, then `rope` products; ops/attention.h derives the other parts of
//            d. Weighting n rows and adding the weights takes one rounding per term and one more whenever a larger score appears;
//            the product with V takes `rank` roundings more.
//            e and w are 0 unless q is bf16. Then a' may be rounded to bf16 once, which moves a score by at most
//            e = 2^-9 max_j scale sum_k |a'_k||c_jk|. Each weight may be rounded as well, after it was added to the sum of
//            weights, and so may sums of weighted rows, over all or some positions: w = (1 + 2^-9)^2 - 1, because y is
//            linear in both. Numbers below 2^-126 may be flushed to zero. If a sum of magnitudes (also of a') exceeds the largest
//            number of q's type, the result is unspecified.
// Source     DeepSeek-AI, "DeepSeek-V2" (2024), section 2.1 and appendix C; deepseek-ai/DeepSeek-V3
//            inference/model.py, MLA.
struct LatentAttention {
  static constexpr std::string_view kName = "latent_attention";
  static constexpr std::string_view kSummary = "causal multi-head latent attention over a paged cache";
  struct Problem {
    int64_t tokens = 1, sequences = 1, heads = 128, rank = 512, nope = 128, rope = 64, v_dim = 128;
    int64_t pages = 64, page_size = 16, pages_per_seq = 64;
    int64_t rows_max = 0;
    double scale = 0.0721687836487032;  // 192^-0.5
    DType q = DType::kBF16, w = DType::kBF16;
    bool operator==(const Problem&) const = default;
    template <class V, class P>
    static void fields(V& v, P& p) {
      v("tokens", p.tokens, "query rows of all sequences");
      v("sequences", p.sequences, "sequences of this step");
      v("heads", p.heads, "query heads");
      v("rank", p.rank, "elements of a latent");
      v("nope", p.nope, "elements of a head that carry no position");
      v("rope", p.rope, "elements of a head that carry the position");
      v("v_dim", p.v_dim, "elements of a head of y");
      v("pages", p.pages, "pages of the cache");
      v("page_size", p.page_size, "tokens of a page");
      v("pages_per_seq", p.pages_per_seq, "columns of the page table");
      v("rows_max", p.rows_max, "upper bound of a sequence's rows; 0: any number");
      v("scale", p.scale, "multiplies the scores");
      v("q", p.q, "type of q, the cache and y");
      v("w", p.w, "type of kv_b");
    }
  };
  struct Args {
    Tensor q, kv_b, cache, page_table, q_begin, kv_len, y;
  };
  template <class V>
  static void slots(const Problem& p, V v) {
    const auto strided = Rows::kMayBeStrided;
    v(slot("q", Role::kIn, p.q, {p.tokens, p.heads, p.nope + p.rope}, true, strided), &Args::q);
    v(slot("kv_b", Role::kIn, p.w, {p.heads, p.nope + p.v_dim, p.rank}), &Args::kv_b);
    v(slot("cache", Role::kIn, p.q, {p.pages, 1, p.page_size, p.rank + p.rope}), &Args::cache);
    v(slot("page_table", Role::kIn, DType::kI32, {p.sequences, p.pages_per_seq}), &Args::page_table);
    v(slot("q_begin", Role::kIn, DType::kI32, {p.sequences + 1}), &Args::q_begin);
    v(slot("kv_len", Role::kIn, DType::kI32, {p.sequences}), &Args::kv_len);
    v(slot("y", Role::kOut, p.q, {p.tokens, p.heads, p.v_dim}, true, strided), &Args::y);
  }
  static Refusal validate(const Problem& p);
  static double bytes(const Problem& p);  // an upper bound: full page tables
  static double flops(const Problem& p);
  static Problem at_tokens(Problem p, int64_t n) { return p.tokens = n, p; }
  static int64_t tokens_of(const Problem& p) { return p.tokens; }
};

Expectations reference(const LatentAttention::Problem& problem, const LatentAttention::Args& args);

}  // namespace sluice
