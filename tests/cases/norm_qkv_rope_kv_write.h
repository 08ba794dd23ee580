#pragma once
#include "cases/qkv_rope_kv_write.h"
#include "cases/rms_norm.h"
#include "ops/norm_qkv_rope_kv_write.h"

namespace sluice::test {

template <>
struct Suite<NormQkvRopeKvWrite> {
  using Problem = NormQkvRopeKvWrite::Problem;
  static std::vector<Case<NormQkvRopeKvWrite>> cases() {
    std::vector<Case<NormQkvRopeKvWrite>> out;
    // Those of the projection that take little time, each behind a norm.
    for (const Case<QkvRopeKvWrite>& c : Suite<QkvRopeKvWrite>::cases())
      if (const Rope::Problem& rope = c.problem.rope.rope; rope.tokens * rope.heads <= 100)
        out.push_back({{.qkv = c.problem}, c.why, c.fill, c.spread});
    // 2 heads of 64 on a kv head.
    const auto of = [](int64_t tokens, int64_t width) {
      Problem p;
      p.qkv.rope = {.rope = {.tokens = tokens, .heads = 2, .table_rows = 30}, .kv_heads = 1, .pages = 2};
      p.qkv.width = width, p.qkv.bias = true;
      return p;
    };
    Problem f32 = of(3, 136), tiny_eps = of(2, 520), whole = of(1, 136);
    whole.qkv.rope.rope.heads = 64, whole.qkv.rope.kv_heads = 8;
    f32.norm_w = DType::kF32, tiny_eps.eps = 0x1p-60;
    for (const int64_t tokens : {1, 7}) {
      whole.qkv.rope.rope.tokens = tokens;
      out.push_back({whole, "all of gpt-oss's heads"});
      out.push_back({of(tokens, 136), "less than a box for each warp", Fill::kNormal, Spread::kStridedRows});
      out.push_back({of(tokens, 3080), "a box more than six for each warp"});
      out.push_back({of(tokens, 4096), "the widest row of registers", Fill::kNormal, Spread::kStridedRows});
      out.push_back({of(tokens, 520), "NaN stays in its row", Fill::kSomeNan});
      out.push_back({of(tokens, 520), "an infinity", Fill::kInfinite});
      out.push_back({of(tokens, 520), "below the smallest normal", Fill::kTiny});
    }
    out.push_back({f32, "a norm's weight in f32"});
    out.push_back({tiny_eps, "a tiny eps", Fill::kZerosMixed});
    return out;
  }
  static void fill(const Problem& p, Fill fill, HostArgs<NormQkvRopeKvWrite>& host, Random& random) {
    HostArgs<QkvRopeKvWrite> beside(p.qkv, Spread::kContiguous);
    Suite<QkvRopeKvWrite>::fill(p.qkv, fill, beside, random);
    copy_inputs(beside, host);
    fill_floats(host.args().norm_weight, Fill::kNormal, random);
  }
  static Problem random(Random& r) {
    Problem p{.qkv = Suite<QkvRopeKvWrite>::random(r)};
    p.eps = coin(r) ? 1e-5 : std::ldexp(1.0, static_cast<int>(r.integer(-101, 0)));
    p.norm_w = r.integer(0, 3) ? DType::kBF16 : DType::kF32;
    return p;
  }
};

}  // namespace sluice::test
