#pragma once
#include "ops/fused/rope_kv_write.h"
#include "ops/rms_norm.h"
#include "ops/row_align.h"

namespace sluice {

// RmsNorm of the heads of queries and keys, followed by RopeKvWrite, fused: the work between the QKV projection and the attention scores
// of a model that normalizes queries and keys.
//
//   q                = RmsNorm of q with q_norm and eps (ops/rms_norm.h), rotated as in ops/rope.h
//   k_cache, v_cache = KvWrite (ops/kv_write.h) of v, and of k after RmsNorm with k_norm and eps and the same rotation
//   k                is scratch: its content is unspecified afterwards
//
// A token whose position is outside the table is not rotated, but still normalized. With settled, the caller guarantees that no launch
// writes positions, table or slot_of (they are copied before all launches).
//
// Shapes     as in rope_kv_write.h; q_norm and k_norm [head_dim]; rows of q, k and v may be strided.
// Types      q, k, v all bf16 or all f32; q_norm and k_norm both bf16 or both f32 (field norm_w); the caches in q's type, or e4m3 (field
//            cache); the table f32.
// Bytes      RopeKvWrite's bytes.
// Errors     make_plan: kInvalidArgument if the problem violates a limit here or in rms_norm.h or rope_kv_write.h. run: never fails on data.
// Exactness  RmsNorm's bound for outputs of q's type, propagated through the rotation: |c| bound(a) + |s| bound(b), plus Rope's own. An
//            e4m3 k_cache may hold the rounded value of any number within that bound. v_cache: as KvWrite.
// Source     rms_norm.h and rope_kv_write.h; Qwen3's attention. TensorRT-LLM, SGLang and vLLM fuse norm and rotation to save a pass over q and k.
struct QkNormRopeKvWrite {
  static constexpr std::string_view kName = "qk_norm_rope_kv_write";
  static constexpr std::string_view kSummary =
      "normalizes and rotates queries and keys, and stores new keys and values in the paged cache";
  struct Problem {
    RopeKvWrite::Problem rotation;
    double eps = 1e-6;
    DType norm_w = DType::kBF16;
    bool x_unaligned = false;
    bool operator==(const Problem&) const = default;
    template <class V, class P>
    static void fields(V& v, P& p) {
      RopeKvWrite::Problem::fields(v, p.rotation);
      v("eps", p.eps, "added to the mean square of a head");
      v("norm_w", p.norm_w, "type of the norms' weights");
      v("x_unaligned", p.x_unaligned,
        "rows of q, k and v may begin anywhere, not only at multiples of 16 bytes");
    }
  };
  struct Args : RopeKvWrite::Args {
    Tensor q_norm, k_norm;
  };
  template <class V>
  static void slots(const Problem& p, V v) {
    RopeKvWrite::slots(p.rotation, [&](SlotSpec spec, Tensor RopeKvWrite::Args::*member) {
      if (spec.rows == Rows::kMayBeStrided)
        spec.row_align = row_align(spec.dtype, p.rotation.rope.head_dim, p.x_unaligned);
      if (member == &RopeKvWrite::Args::k) spec.role = Role::kInOut;
      v(spec, static_cast<Tensor Args::*>(member));
    });
    v(slot("q_norm", Role::kIn, p.norm_w, {p.rotation.rope.head_dim}), &Args::q_norm);
    v(slot("k_norm", Role::kIn, p.norm_w, {p.rotation.rope.head_dim}), &Args::k_norm);
  }
  // The parts: the norms of q and k, in place, and Problem::rotation; Args extends the Args of RopeKvWrite.
  static RmsNorm::Problem norm(const Problem& p, int64_t heads) {
    const Rope::Problem& rope = p.rotation.rope;
    return {.tokens = rope.tokens,
            .hidden = rope.head_dim,
            .eps = p.eps,
            .x = rope.x,
            .w = p.norm_w,
            .y = rope.x,
            .heads = heads};
  }
  static RmsNorm::Problem queries(const Problem& p) { return norm(p, p.rotation.rope.heads); }
  static RmsNorm::Problem keys(const Problem& p) { return norm(p, p.rotation.kv_heads); }
  static RmsNorm::Args queries(const Args& a) { return in_place(a.q, a.q_norm); }
  static RmsNorm::Args keys(const Args& a) { return in_place(a.k, a.k_norm); }
  // Heads as RmsNorm reads them: adjacent in their row.
  static RmsNorm::Args in_place(const Tensor& heads, const Tensor& weight);
  static Refusal validate(const Problem& p);
  static double bytes(const Problem& p) { return RopeKvWrite::bytes(p.rotation); }
  static double flops(const Problem& p) {
    return RmsNorm::flops(queries(p)) + RmsNorm::flops(keys(p)) + RopeKvWrite::flops(p.rotation);
  }
  static Problem at_tokens(Problem p, int64_t n) { return p.rotation.rope.tokens = n, p; }
  static int64_t tokens_of(const Problem& p) { return p.rotation.rope.tokens; }
};

Expectations reference(const QkNormRopeKvWrite::Problem& problem, const QkNormRopeKvWrite::Args& args);

}  // namespace sluice
