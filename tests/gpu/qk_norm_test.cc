// The exact bits of qk_norm_rope_kv_write, which the reference leaves open within its bounds.
#include <cstring>
#include <vector>

#include "cases/qk_norm_rope_kv_write.h"
#include "dispatch/plan.h"
#include "gpu/gpu.h"

namespace sluice::test {
namespace {

using Op = QkNormRopeKvWrite;
using Bytes = std::vector<std::vector<std::byte>>;

class GpuQkNorm : public OnGpu {
 protected:
  // The outputs of `run` for the same inputs; keys outside the cache are scratch.
  template <class Run>
  Bytes after(const Op::Problem& p, Run run) {
    HostArgs<Op> host(p, Spread::kStridedRows);
    Random random(3);
    Suite<Op>::fill(p, Fill::kNormal, host, random);
    DeviceArgs<Op> on_device(gpu(), host);
    EXPECT_TRUE(on_device.upload(stream()).ok());
    const Status status = run(on_device.args());
    EXPECT_TRUE(status.ok()) << status.message;
    EXPECT_TRUE(on_device.download(stream()).ok());
    Bytes out;
    for (const char* name : {"q", "k_cache", "v_cache"}) {
      GuardedTensor* t = host.find(name);
      out.emplace_back(t->start(), t->start() + t->total_bytes());
    }
    return out;
  }
  template <class Part>
  Status run_part(const typename Part::Problem& p, const typename Part::Args& args) {
    const auto plan = make_plan<Part>(gpu(), p);
    return plan.ok() ? plan.value().run(args, {}, stream()) : plan.status();
  }
};

TEST_F(GpuQkNorm, BitsAreThoseOfTheOperationsInTurn) {
  constexpr auto kKernel = "cuda.qk_norm_rope_kv_write.rows_sm90";
  int ran = 0;
  for (const Case<Op>& test : Suite<Op>::cases()) {
    const Op::Problem& p = test.problem;
    const auto plan = make_plan<Op>(gpu(), p, {.force = kKernel});
    // A CTA sums a row with a single head.
    if (!plan.ok() || p.rotation.rope.heads == 1 || p.rotation.kv_heads == 1) continue;
    ++ran;
    const Bytes at_once = after(p, [&](const Op::Args& a) { return plan.value().run(a, {}, stream()); });
    const Bytes in_turn = after(p, [&](const Op::Args& a) {
      SLUICE_TRY(run_part<RmsNorm>(Op::queries(p), Op::queries(a)));
      SLUICE_TRY(run_part<RmsNorm>(Op::keys(p), Op::keys(a)));
      return run_part<RopeKvWrite>(p.rotation, a);
    });
    EXPECT_TRUE(at_once == in_turn) << test.why;
  }
  EXPECT_GT(ran, 5);
}

}  // namespace
}  // namespace sluice::test
