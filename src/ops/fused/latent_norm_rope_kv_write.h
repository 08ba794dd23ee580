#pragma once
#include "ops/kv_write.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/row_align.h"

namespace sluice {

// The work between latent attention's projections and its scores, fused: Rope of the queries, RmsNorm of the key-value latents, Rope of the
// keys stored after the latents, and KvWrite of the resulting rows.
//
//   q        = q, rotated as in ops/rope.h
//   k_cache  = KvWrite (ops/kv_write.h) of rows of `rank` + `rotary` elements: the first `rank` elements of k after RmsNorm with
//               norm_weight and eps (ops/rms_norm.h), then the other elements of k, rotated
//   k        is scratch: its content is unspecified afterwards
//
// A token whose position is outside the table is not rotated, but still normalized and stored. With settled, the caller guarantees that no
// launch writes positions, table or slot_of (they are copied before all launches).
//
// Shapes     q [tokens, heads, head_dim], k [tokens, 1, rank + rotary], rows may be strided; norm_weight [rank]; k_cache [pages, 1,
//            page_size, rank + rotary]; otherwise as in rope.h and kv_write.h. rank >= 1; rank + rotary <= 1024.
// Types      q, k and k_cache all bf16 or all f32; norm_weight bf16 or f32 (field norm_w); the table f32.
// Bytes      q's rotated elements and k, read and written once.
// Errors     make_plan: kInvalidArgument if the problem violates a limit here or in rope.h, rms_norm.h or kv_write.h. run: never fails on data.
// Exactness  q and the last `rotary` elements of a stored row have the bound of rope.h, the first `rank` elements the bound of rms_norm.h.
// Source     rope.h, rms_norm.h and kv_write.h; DeepSeek-V3's attention (nn/latent_attention.h).
struct LatentNormRopeKvWrite {
  static constexpr std::string_view kName = "latent_norm_rope_kv_write";
  static constexpr std::string_view kSummary =
      "rotates the queries of latent attention, and normalizes, rotates and stores the rows of its cache";
  struct Problem {
    Rope::Problem rope;  // the queries' rotation; its tokens, rotary, table, pairs and type also apply to k
    int64_t rank = 512, pages = 64, page_size = 16;
    double eps = 1e-6;
    DType norm_w = DType::kBF16;
    bool settled = false, x_unaligned = false;
    bool operator==(const Problem&) const = default;
    template <class V, class P>
    static void fields(V& v, P& p) {
      Rope::Problem::fields(v, p.rope);
      v("rank", p.rank, "elements of a latent");
      v("pages", p.pages, "pages of the cache");
      v("page_size", p.page_size, "tokens of a page");
      v("eps", p.eps, "added to the mean square of a latent");
      v("norm_w", p.norm_w, "type of norm_weight");
      v("settled", p.settled, "no launch writes positions, table and slot_of");
      v("x_unaligned", p.x_unaligned,
        "rows of q and k may begin anywhere, not only at multiples of 16 bytes");
    }
  };
  struct Args {
    Tensor positions, table, slot_of, q, k, norm_weight, k_cache;
  };
  static int64_t row(const Problem& p) { return p.rank + p.rope.rotary; }
  template <class V>
  static void slots(const Problem& p, V v) {
    const int64_t tokens = p.rope.tokens;
    const DType type = p.rope.x;
    const auto strided = [&](std::string_view name, int64_t heads, int64_t width) {
      SlotSpec spec = slot(name, Role::kInOut, type, {tokens, heads, width}, true, Rows::kMayBeStrided);
      return spec.row_align = row_align(type, width, p.x_unaligned), spec;
    };
    v(slot("positions", Role::kIn, DType::kI32, {tokens}), &Args::positions);
    v(slot("table", Role::kIn, DType::kF32, {p.rope.table_rows, p.rope.rotary / 2, 2}), &Args::table);
    v(slot("slot_of", Role::kIn, DType::kI32, {tokens}), &Args::slot_of);
    v(strided("q", p.rope.heads, p.rope.head_dim), &Args::q);
    v(strided("k", 1, row(p)), &Args::k);
    v(slot("norm_weight", Role::kIn, p.norm_w, {p.rank}), &Args::norm_weight);
    v(slot("k_cache", Role::kInOut, type, {p.pages, 1, p.page_size, row(p)}), &Args::k_cache);
  }
  // The parts. The rotation of the queries is Problem::rope.
  static RmsNorm::Problem norm(const Problem& p) {
    return {
        .tokens = p.rope.tokens, .hidden = p.rank, .eps = p.eps, .x = p.rope.x, .w = p.norm_w, .y = p.rope.x};
  }
  static Rope::Problem keys(const Problem& p) {
    Rope::Problem out = p.rope;
    out.heads = 1, out.head_dim = row(p), out.first = p.rank;
    return out;
  }
  static KvWrite::Problem write(const Problem& p) {
    return {.tokens = p.rope.tokens,
            .kv_heads = 1,
            .head_dim = row(p),
            .pages = p.pages,
            .page_size = p.page_size,
            .kv = p.rope.x,
            .values = false};
  }
  static Refusal validate(const Problem& p);
  static double bytes(const Problem& p);
  static double flops(const Problem& p) {
    return Rope::flops(p.rope) + RmsNorm::flops(norm(p)) + Rope::flops(keys(p));
  }
  static Problem at_tokens(Problem p, int64_t n) { return p.rope.tokens = n, p; }
  static int64_t tokens_of(const Problem& p) { return p.rope.tokens; }
};

Expectations reference(const LatentNormRopeKvWrite::Problem& problem,
                       const LatentNormRopeKvWrite::Args& args);

}  // namespace sluice
