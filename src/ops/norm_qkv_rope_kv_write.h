#pragma once
#include "ops/qkv_rope_kv_write.h"
#include "ops/rms_norm.h"

namespace sluice {

// RmsNorm, and QkvRopeKvWrite behind it, as one operation: what stands between the residual stream and a layer's scores.
//
//   qkv, k_cache, v_cache   what ops/qkv_rope_kv_write.h says of the norm, which is what ops/rms_norm.h says of x, norm_weight and eps
//
// Shapes     as the contracts have them; norm_weight [width], width up to 65536.
// Types      as there; norm_weight bf16 or f32 (field norm_w).
// Bytes      those of QkvRopeKvWrite.
// Errors     make_plan: kInvalidArgument if a bound of a contract is broken. run: never fails on data.
// Exactness  y is that of the norm, rounded to bf16 once, and anywhere: QkvRopeKvWrite's bound on the norm, and of each sum
//            (2^-8 + (width / 2 + 12) * 2^-24) * sum |norm| |w|. Anything where a sum of squares, or of |x norm_weight w|, overflows f32.
// Source     the contracts; the norm of a row is a factor of its sums.
struct NormQkvRopeKvWrite {
  static constexpr std::string_view kName = "norm_qkv_rope_kv_write";
  static constexpr std::string_view kSummary =
      "norms each token, projects it to queries, keys and values, turns them, and stores keys and values";
  struct Problem {
    QkvRopeKvWrite::Problem qkv;
    double eps = 1e-5;
    DType norm_w = DType::kBF16;
    bool operator==(const Problem&) const = default;
    template <class V, class P>
    static void fields(V& v, P& p) {
      QkvRopeKvWrite::Problem::fields(v, p.qkv);
      v("eps", p.eps, "added to the mean square");
      v("norm_w", p.norm_w, "type of the norm's weight");
    }
  };
  struct Args : QkvRopeKvWrite::Args {
    Tensor norm_weight;
  };
  template <class V>
  static void slots(const Problem& p, V v) {
    QkvRopeKvWrite::slots(p.qkv, [&](const SlotSpec& spec, Tensor QkvRopeKvWrite::Args::*member) {
      v(spec, static_cast<Tensor Args::*>(member));
    });
    v(slot("norm_weight", Role::kIn, p.norm_w, {p.qkv.width}), &Args::norm_weight);
  }
  // The parts: the norm, whose rows are [tokens, width] in the type of x, and Problem::qkv on them.
  static RmsNorm::Problem norm(const Problem& p) {
    const Rope::Problem& rope = p.qkv.rope.rope;
    return {
        .tokens = rope.tokens, .hidden = p.qkv.width, .eps = p.eps, .x = rope.x, .w = p.norm_w, .y = rope.x};
  }
  static RmsNorm::Args norm(const Args& a, const Tensor& normed) {
    return {.x = a.x, .weight = a.norm_weight, .residual = {}, .y = normed};
  }
  static QkvRopeKvWrite::Args qkv(const Args& a, const Tensor& normed) {
    QkvRopeKvWrite::Args out = a;
    out.x = normed;
    return out;
  }
  static Refusal validate(const Problem& p);
  static double bytes(const Problem& p) { return QkvRopeKvWrite::bytes(p.qkv); }
  static double flops(const Problem& p) { return RmsNorm::flops(norm(p)) + QkvRopeKvWrite::flops(p.qkv); }
  static Problem at_tokens(Problem p, int64_t n) { return p.qkv = QkvRopeKvWrite::at_tokens(p.qkv, n), p; }
  static int64_t tokens_of(const Problem& p) { return QkvRopeKvWrite::tokens_of(p.qkv); }
};

Expectations reference(const NormQkvRopeKvWrite::Problem& problem, const NormQkvRopeKvWrite::Args& args);

}  // namespace sluice
