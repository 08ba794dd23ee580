#include "cases/qk_norm_rope_kv_write.h"

#include <algorithm>
#include <cmath>

#include "harness/conformance.h"

namespace sluice::test {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(QkNormRopeKvWrite, Conformance, QkNormRopeKvWrite);

// The mean square of alternating 3 and 4 is 12.5. At position 1 each pair rotates by a right angle: (3, 4)
// becomes (-4, 3). The second token has no position, and the third token has no slot.
TEST(QkNormRopeKvWriteByHand, NormsThenRotatesThenStores) {
  const QkNormRopeKvWrite::Problem p{.rotation = {.rope = {.tokens = 3,
                                                           .heads = 2,
                                                           .head_dim = 16,
                                                           .rotary = 16,
                                                           .table_rows = 2,
                                                           .pairs = RopePairs::kInterleaved,
                                                           .x = DType::kF32},
                                                  .kv_heads = 1,
                                                  .pages = 2,
                                                  .page_size = 2},
                                     .eps = 0x1p-100};
  HostArgs<QkNormRopeKvWrite> host(p, Spread::kContiguous);
  const QkNormRopeKvWrite::Args& a = host.args();
  const auto fill = [](const Tensor& t, double even, double odd) {
    set_each(t, [&](int64_t, int64_t i) { return i % 2 ? odd : even; });
  };
  set_each(a.table, [](int64_t position, int64_t i) { return position == i % 2 ? 1 : 0; });
  const int32_t positions[] = {1, -1, 1}, slots[] = {3, 0, -1};
  std::copy_n(positions, 3, a.positions.as<int32_t>());
  std::copy_n(slots, 3, a.slot_of.as<int32_t>());
  for (int64_t i = 0; i < 16; ++i)
    a.q_norm.as<BF16>()[i] = to_bf16(2.f), a.k_norm.as<BF16>()[i] = to_bf16(-1.f);
  const double root = std::sqrt(12.5);
  for (const auto& device : every_level(2)) {
    fill(a.q, 3, 4), fill(a.k, 4, 3), fill(a.v, 7, 9);
    for (const Tensor* cache : {&a.k_cache, &a.v_cache}) fill(*cache, 100, 100);
    const auto plan = plan_op<QkNormRopeKvWrite>(*device, p);
    ASSERT_TRUE(plan.ok()) << plan.status().message;
    ASSERT_TRUE(plan.value().run(a, {}, device->stream()).ok());
    for (int64_t i = 0; i < 32; ++i) {
      for (const int64_t t : {0, 2}) EXPECT_NEAR(load2(a.q, t, i), 2 * (i % 2 ? 3 : -4) / root, 1e-6);
      EXPECT_NEAR(load2(a.q, 1, i), 2 * (i % 2 ? 4 : 3) / root, 1e-6);
    }
    for (int64_t i = 0; i < 64; ++i) {
      const int64_t slot = i / 16;
      const double turned = (i % 2 ? -4 : 3) / root, kept = (i % 2 ? -3 : -4) / root;
      EXPECT_NEAR(load(a.k_cache, i), slot == 3 ? turned : slot == 0 ? kept : 100, 1e-6) << i;
      EXPECT_EQ(load(a.v_cache, i), slot == 3 || slot == 0 ? (i % 2 ? 9 : 7) : 100) << i;
    }
  }
}

// Rows of tensors with three dimensions must begin at multiples of 16 bytes, too, unless the problem says
// otherwise.
TEST(QkNormRopeKvWriteContract, RowsBeginWhereTheProblemSays) {
  QkNormRopeKvWrite::Problem p{.rotation = {.rope = {.tokens = 2, .heads = 2}, .kv_heads = 1}};
  HostArgs<QkNormRopeKvWrite> host(p, Spread::kStridedRows);
  QkNormRopeKvWrite::Args a = host.args();
  EXPECT_TRUE(check_args<QkNormRopeKvWrite>(p, a, Backend::kCpu).ok());
  a.k.stride[0] = 67;
  EXPECT_EQ(
      check_args<QkNormRopeKvWrite>(p, a, Backend::kCpu).message,
      "qk_norm_rope_kv_write: k: wanted rows that begin at multiples of 16 bytes, found a row stride of 134 "
      "bytes; set x_unaligned=1 to allow it");
  p.x_unaligned = true;
  EXPECT_TRUE(check_args<QkNormRopeKvWrite>(p, a, Backend::kCpu).ok());
}

TEST(QkNormRopeKvWriteContract, BoundsAreRefusedByName) {
  QkNormRopeKvWrite::Problem p;
  EXPECT_TRUE(QkNormRopeKvWrite::validate(p).accepted()) << QkNormRopeKvWrite::validate(p).line();
  p.rotation.kv_heads = 2000;
  EXPECT_EQ(QkNormRopeKvWrite::validate(p).line(), "needs kv_heads from 1 to 1024; kv_heads=2000");
  p.rotation.kv_heads = 1, p.eps = 0;
  EXPECT_NE(QkNormRopeKvWrite::validate(p).line().find("eps"), std::string::npos);
  p.eps = 1e-6, p.norm_w = DType::kI32;
  EXPECT_FALSE(QkNormRopeKvWrite::validate(p).accepted());
}

}  // namespace
}  // namespace sluice::test
