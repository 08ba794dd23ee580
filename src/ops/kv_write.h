#pragma once
#include "ops/cache_type.h"
#include "ops/op.h"

namespace sluice {

// Stores the keys and values of new tokens in the paged cache.
//
//   k_cache[slot / page_size, :, slot % page_size] = k[t],  slot = slot_of[t];  v_cache likewise, if `values`
//
// Latent attention stores keys and values together in one row, so it has no v.
//
// A token whose slot is outside [0, pages * page_size), -1 by convention, is not stored. Two tokens must not
// share a slot.
//
// Shapes     k, v [tokens, kv_heads, head_dim], rows may be strided; k_cache, v_cache [pages, kv_heads,
//            page_size, head_dim]: a page's rows of one head are adjacent; slot_of i32[tokens]. tokens >= 0;
//            all other sizes at least 1; pages * page_size < 2^31.
// Types      k and v bf16 or f32; the caches in the same type, or e4m3 (field cache).
// Bytes      reads k and v, writes the same number of elements.
// Errors     make_plan: kInvalidArgument if the problem violates a limit above. run: never fails on data.
// Exactness  equal to the reference. e4m3 caches store the nearest number of that type, ties to an even code; numbers beyond
//            448, and infinity, are stored as 448; NaN is stored as NaN.
// Source     vLLM's reshape_and_cache; Kwon et al., "PagedAttention" (2023).
struct KvWrite {
  static constexpr std::string_view kName = "kv_write";
  static constexpr std::string_view kSummary = "stores the keys and values of new tokens in the paged cache";
  static constexpr int64_t kHeadDimMax = 1024;
  struct Problem {
    int64_t tokens = 1, kv_heads = 8, head_dim = 64, pages = 64, page_size = 16;
    DType kv = DType::kBF16;
    CacheType cache = CacheType::kSame;
    bool values = true;
    bool operator==(const Problem&) const = default;
    template <class V, class P>
    static void fields(V& v, P& p) {
      v("tokens", p.tokens, "rows of k and v");
      v("kv_heads", p.kv_heads, "heads of k and v");
      v("head_dim", p.head_dim, "elements of a head");
      v("pages", p.pages, "pages of the cache");
      v("page_size", p.page_size, "tokens of a page");
      v("kv", p.kv, "type of k and v");
      v("cache", p.cache, "type of the caches: same (as k and v) or e4m3");
      v("values", p.values, "stores v as well as k");
    }
  };
  struct Args {
    Tensor k, v, slot_of, k_cache, v_cache;
  };
  template <class V>
  static void slots(const Problem& p, V v) {
    const auto strided = Rows::kMayBeStrided;
    const DType cache = cache_dtype(p.cache, p.kv);
    v(slot("k", Role::kIn, p.kv, {p.tokens, p.kv_heads, p.head_dim}, true, strided), &Args::k);
    v(slot("v", Role::kIn, p.kv, {p.tokens, p.kv_heads, p.head_dim}, p.values, strided), &Args::v);
    v(slot("slot_of", Role::kIn, DType::kI32, {p.tokens}), &Args::slot_of);
    v(slot("k_cache", Role::kInOut, cache, {p.pages, p.kv_heads, p.page_size, p.head_dim}), &Args::k_cache);
    v(slot("v_cache", Role::kInOut, cache, {p.pages, p.kv_heads, p.page_size, p.head_dim}, p.values),
      &Args::v_cache);
  }
  static Refusal validate(const Problem& p);
  static double bytes(const Problem& p);
  static double flops(const Problem&) { return 0; }
  static Problem at_tokens(Problem p, int64_t n) { return p.tokens = n, p; }
  static int64_t tokens_of(const Problem& p) { return p.tokens; }
};

Expectations reference(const KvWrite::Problem& problem, const KvWrite::Args& args);

}  // namespace sluice
