#pragma once
#include "ops/kv_write.h"
#include "ops/rope.h"

namespace sluice {

// Rope on queries and keys, followed by KvWrite, fused: the work between an attention layer's QKV projection and its scores.
//
//   q                = q, rotated as in ops/rope.h
//   k_cache, v_cache = KvWrite (ops/kv_write.h) of k, rotated as in ops/rope.h, and of v
//   k                is not changed
//
// With settled, the caller guarantees that no launch writes positions, table or slot_of (they are copied before all launches).
//
// Shapes     q [tokens, heads, head_dim]; k, v [tokens, kv_heads, head_dim]; rows may be strided. The other shapes and all limits
//            are as in rope.h and kv_write.h.
// Types      q, k, v all bf16 or all f32; the caches in the same type, or e4m3 (field cache); the table f32.
// Bytes      reads q, k and v, and writes q and the new cache rows, once each.
// Errors     make_plan: kInvalidArgument if the problem violates a limit of rope.h or kv_write.h. run: never fails on data.
// Exactness  q and k_cache: Rope's bound; v_cache: as KvWrite. An e4m3 k_cache may hold the rounded value of any key within
//            Rope's bound: if that interval has a tie between two e4m3 numbers, either may be stored.
// Source     rope.h and kv_write.h; vLLM and SGLang fuse them to save a pass over keys and values.
struct RopeKvWrite {
  static constexpr std::string_view kName = "rope_kv_write";
  static constexpr std::string_view kSummary =
      "rotates queries and keys, and stores new keys and values in the paged cache";
  struct Problem {
    Rope::Problem rope;  // the queries' rotation; its tokens, head_dim and type also apply to keys and values
    int64_t kv_heads = 8, pages = 64, page_size = 16;
    CacheType cache = CacheType::kSame;
    bool settled = false;
    bool operator==(const Problem&) const = default;
    template <class V, class P>
    static void fields(V& v, P& p) {
      Rope::Problem::fields(v, p.rope);
      v("kv_heads", p.kv_heads, "heads of k and v");
      v("pages", p.pages, "pages of the cache");
      v("page_size", p.page_size, "tokens of a page");
      v("cache", p.cache, "type of the caches: same (as k and v) or e4m3");
      v("settled", p.settled, "no launch writes positions, table and slot_of");
    }
  };
  struct Args {
    Tensor positions, table, slot_of, q, k, v, k_cache, v_cache;
  };
  template <class V>
  static void slots(const Problem& p, V v) {
    const auto strided = Rows::kMayBeStrided;
    const int64_t tokens = p.rope.tokens, head_dim = p.rope.head_dim;
    const DType type = p.rope.x, cache = cache_dtype(p.cache, type);
    v(slot("positions", Role::kIn, DType::kI32, {tokens}), &Args::positions);
    v(slot("table", Role::kIn, DType::kF32, {p.rope.table_rows, p.rope.rotary / 2, 2}), &Args::table);
    v(slot("slot_of", Role::kIn, DType::kI32, {tokens}), &Args::slot_of);
    v(slot("q", Role::kInOut, type, {tokens, p.rope.heads, head_dim}, true, strided), &Args::q);
    v(slot("k", Role::kIn, type, {tokens, p.kv_heads, head_dim}, true, strided), &Args::k);
    v(slot("v", Role::kIn, type, {tokens, p.kv_heads, head_dim}, true, strided), &Args::v);
    v(slot("k_cache", Role::kInOut, cache, {p.pages, p.kv_heads, p.page_size, head_dim}), &Args::k_cache);
    v(slot("v_cache", Role::kInOut, cache, {p.pages, p.kv_heads, p.page_size, head_dim}), &Args::v_cache);
  }
  // The parts: the rotation of the keys, and the write. The rotation of the queries is Problem::rope.
  static Rope::Problem keys(const Problem& p) {
    Rope::Problem out = p.rope;
    return out.heads = p.kv_heads, out;
  }
  static KvWrite::Problem write(const Problem& p) {
    return {.tokens = p.rope.tokens,
            .kv_heads = p.kv_heads,
            .head_dim = p.rope.head_dim,
            .pages = p.pages,
            .page_size = p.page_size,
            .kv = p.rope.x,
            .cache = p.cache};
  }
  static Refusal validate(const Problem& p);
  static double bytes(const Problem& p);
  static double flops(const Problem& p) { return Rope::flops(p.rope) + Rope::flops(keys(p)); }
  static Problem at_tokens(Problem p, int64_t n) { return p.rope.tokens = n, p; }
  static int64_t tokens_of(const Problem& p) { return p.rope.tokens; }
};

Expectations reference(const RopeKvWrite::Problem& problem, const RopeKvWrite::Args& args);

}  // namespace sluice
