#pragma once
#include "ops/fused/rope_kv_write.h"
#include "ops/linear.h"

namespace sluice {

// The QKV projection of an attention layer, followed by RopeKvWrite, fused: the work between a layer's input and its attention
// scores.
//
//   y                = Linear of x, w and bias (ops/linear.h), rounded to the type of x: heads queries, kv_heads keys, kv_heads values
//   qkv              = the queries of y, rotated as in ops/rope.h; the columns after them are scratch with unspecified content
//   k_cache, v_cache = KvWrite (ops/kv_write.h) of the rotated keys of y, and of its values
//
// With settled, the caller guarantees that no launch writes positions, table or slot_of (they are copied before all launches).
//
// Shapes     x [tokens, width]; w [features, width] or panels, bias [features], features = (heads + 2 kv_heads) head_dim;
//            qkv [tokens, features]; rows of x and qkv may be strided. Other shapes and all limits as in linear.h and rope_kv_write.h.
// Types      x and qkv both bf16 or both f32; w and bias both bf16 or both f32; the caches in x's type, or e4m3 (field cache); the
//            table f32.
// Bytes      w, x, qkv once, and each key and value once, to the caches.
// Errors     make_plan: kInvalidArgument if the problem violates a limit here or in linear.h or rope_kv_write.h. run: never fails on data.
// Exactness  Linear's bound of y, propagated through the rotation: |c| bound(a) + |s| bound(b), plus Rope's own. An e4m3 cache may
//            hold the rounded value of any number within that bound.
// Source     linear.h and rope_kv_write.h; TensorRT-LLM and vLLM fuse rotation and write, to save a pass over keys and values.
struct QkvRopeKvWrite {
  static constexpr std::string_view kName = "qkv_rope_kv_write";
  static constexpr std::string_view kSummary =
      "projects to queries, keys and values, rotates queries and keys, and stores keys and values in the "
      "paged cache";
  struct Problem {
    RopeKvWrite::Problem rope;  // its tokens and type also apply to x
    int64_t width = 2880;
    DType w = DType::kBF16;
    WeightLayout layout = WeightLayout::kRowMajor;
    bool bias = false, x_unaligned = false;
    bool operator==(const Problem&) const = default;
    template <class V, class P>
    static void fields(V& v, P& p) {
      RopeKvWrite::Problem::fields(v, p.rope);
      v("width", p.width, "length of the projection's sums");
      v("w", p.w, "type of the weights and the bias");
      v("layout", p.layout, "layout of the weights");
      v("bias", p.bias, "adds bias[features]");
      v("x_unaligned", p.x_unaligned,
        "rows of x and qkv may begin anywhere, not only at multiples of 16 bytes");
    }
  };
  struct Args {
    Tensor x, w, bias, positions, table, slot_of, qkv, k_cache, v_cache;
  };
  template <class V>
  static void slots(const Problem& p, V v) {
    const Linear::Problem linear = project(p);
    Linear::slots(linear, [&](SlotSpec spec, Tensor Linear::Args::*member) {
      if (member == &Linear::Args::x) v(spec, &Args::x);
      if (member == &Linear::Args::w) v(spec, &Args::w);
      if (member == &Linear::Args::bias) v(spec, &Args::bias);
    });
    RopeKvWrite::slots(p.rope, [&](SlotSpec spec, Tensor RopeKvWrite::Args::*member) {
      if (member == &RopeKvWrite::Args::positions) v(spec, &Args::positions);
      if (member == &RopeKvWrite::Args::table) v(spec, &Args::table);
      if (member == &RopeKvWrite::Args::slot_of) v(spec, &Args::slot_of);
    });
    SlotSpec qkv =
        slot("qkv", Role::kOut, linear.y, {linear.tokens, linear.features}, true, Rows::kMayBeStrided);
    qkv.row_align = row_align(linear.y, linear.features, p.x_unaligned);
    v(qkv, &Args::qkv);
    RopeKvWrite::slots(p.rope, [&](SlotSpec spec, Tensor RopeKvWrite::Args::*member) {
      if (member == &RopeKvWrite::Args::k_cache) v(spec, &Args::k_cache);
      if (member == &RopeKvWrite::Args::v_cache) v(spec, &Args::v_cache);
    });
  }
  // The parts: the projection, and Problem::rope.
  static Linear::Problem project(const Problem& p) {
    const Rope::Problem& rope = p.rope.rope;
    return {.tokens = rope.tokens,
            .features = (rope.heads + 2 * p.rope.kv_heads) * rope.head_dim,
            .width = p.width,
            .x = rope.x,
            .w = p.w,
            .y = rope.x,
            .layout = p.layout,
            .bias = p.bias,
            .x_unaligned = p.x_unaligned};
  }
  static Linear::Args project(const Args& a) {
    return {.x = a.x, .w = a.w, .bias = a.bias, .residual = {}, .y = a.qkv};
  }
  static RopeKvWrite::Args rotate(const Problem& p, const Args& a) {
    const int64_t heads = p.rope.rope.heads, kv_heads = p.rope.kv_heads, head_dim = p.rope.rope.head_dim;
    return {.positions = a.positions,
            .table = a.table,
            .slot_of = a.slot_of,
            .q = heads_of(a.qkv, 0, heads, head_dim),
            .k = heads_of(a.qkv, heads, kv_heads, head_dim),
            .v = heads_of(a.qkv, heads + kv_heads, kv_heads, head_dim),
            .k_cache = a.k_cache,
            .v_cache = a.v_cache};
  }
  // Heads [first, first + count) of the rows of qkv.
  static Tensor heads_of(const Tensor& qkv, int64_t first, int64_t count, int64_t head_dim);
  static Refusal validate(const Problem& p);
  static double bytes(const Problem& p);
  static double flops(const Problem& p) { return Linear::flops(project(p)) + RopeKvWrite::flops(p.rope); }
  static Problem at_tokens(Problem p, int64_t n) { return p.rope.rope.tokens = n, p; }
  static int64_t tokens_of(const Problem& p) { return p.rope.rope.tokens; }
};

Expectations reference(const QkvRopeKvWrite::Problem& problem, const QkvRopeKvWrite::Args& args);

}  // namespace sluice
