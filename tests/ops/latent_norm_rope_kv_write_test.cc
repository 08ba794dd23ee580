#include "cases/latent_norm_rope_kv_write.h"

#include <algorithm>
#include <cmath>

#include "harness/conformance.h"

namespace sluice::test {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(LatentNormRopeKvWrite, Conformance, LatentNormRopeKvWrite);

// The mean square of alternating 3 and 4 is 12.5. At position 1 each pair rotates by a right angle: (3, 4)
// becomes (-4, 3). The second token has no position, and the third token has no slot.
TEST(LatentNormRopeKvWriteByHand, NormsTheLatentAndRotatesTheRest) {
  const LatentNormRopeKvWrite::Problem p{.rope = {.tokens = 3,
                                                  .heads = 2,
                                                  .head_dim = 16,
                                                  .rotary = 8,
                                                  .first = 8,
                                                  .table_rows = 2,
                                                  .pairs = RopePairs::kInterleaved,
                                                  .x = DType::kF32},
                                         .rank = 16,
                                         .pages = 2,
                                         .page_size = 2,
                                         .eps = 0x1p-100};
  HostArgs<LatentNormRopeKvWrite> host(p, Spread::kContiguous);
  const LatentNormRopeKvWrite::Args& a = host.args();
  const auto fill = [](const Tensor& t, double even, double odd) {
    set_each(t, [&](int64_t, int64_t i) { return i % 2 ? odd : even; });
  };
  set_each(a.table, [](int64_t position, int64_t i) { return position == i % 2 ? 1 : 0; });
  const int32_t positions[] = {1, -1, 1}, slots[] = {3, 0, -1};
  std::copy_n(positions, 3, a.positions.as<int32_t>());
  std::copy_n(slots, 3, a.slot_of.as<int32_t>());
  for (int64_t i = 0; i < 16; ++i) a.norm_weight.as<BF16>()[i] = to_bf16(-2.f);
  const double root = std::sqrt(12.5);
  for (const auto& device : every_level(2)) {
    fill(a.q, 3, 4), fill(a.k, 3, 4), fill(a.k_cache, 100, 100);
    const auto plan = plan_op<LatentNormRopeKvWrite>(*device, p);
    ASSERT_TRUE(plan.ok()) << plan.status().message;
    ASSERT_TRUE(plan.value().run(a, {}, device->stream()).ok());
    for (int64_t i = 0; i < 32; ++i) {
      const double kept = i % 2 ? 4 : 3, turned = i % 2 ? 3 : -4;
      for (int64_t t = 0; t < 3; ++t)
        EXPECT_NEAR(load2(a.q, t, i), t != 1 && i % 16 >= 8 ? turned : kept, 1e-6) << t << " " << i;
    }
    for (int64_t i = 0; i < 4 * 24; ++i) {
      const int64_t slot = i / 24, at = i % 24;
      const double kept = i % 2 ? 4 : 3, turned = i % 2 ? 3 : -4;
      const double stored = at < 16 ? -2 * kept / root : slot == 3 ? turned : kept;
      EXPECT_NEAR(load(a.k_cache, i), slot == 3 || slot == 0 ? stored : 100, 1e-6) << i;
    }
  }
}

}  // namespace
}  // namespace sluice::test
