#include "cases/norm_qkv_rope_kv_write.h"

#include "harness/conformance.h"

namespace sluice::test {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(NormQkvRopeKvWrite, Conformance, NormQkvRopeKvWrite);

// One head of two elements, one key and one value; feature n reads column n % 4 of x alone. eps stands for nothing.
NormQkvRopeKvWrite::Problem one_head() {
  NormQkvRopeKvWrite::Problem p{.qkv = {.rope = {.rope = {.tokens = 1,
                                                          .heads = 1,
                                                          .head_dim = 2,
                                                          .rotary = 2,
                                                          .table_rows = 1,
                                                          .x = DType::kF32},
                                                 .kv_heads = 1,
                                                 .pages = 1,
                                                 .page_size = 1},
                                        .width = 4,
                                        .w = DType::kF32,
                                        .bias = true},
                                .eps = 0x1p-100};
  return p;
}
void fill_by_hand(const NormQkvRopeKvWrite::Args& a) {
  for (int64_t h = 0; h < 4; ++h) {
    a.x.as<float>()[h] = h % 2 ? 3 : 4;  // the mean square is 12.5
    a.norm_weight.as<BF16>()[h] = to_bf16(h == 1 ? 2.f : 1.f);
  }
  set_each(a.w, [](int64_t n, int64_t h) { return n % 4 == h ? 1 : 0; });
  for (int64_t n = 0; n < 6; ++n) a.bias.as<float>()[n] = n == 4 ? 10.f : 0.f;
  a.positions.as<int32_t>()[0] = a.slot_of.as<int32_t>()[0] = 0;
  a.table.as<float>()[0] = 0, a.table.as<float>()[1] = 1;  // a quarter turn
}

TEST(NormQkvRopeKvWriteByHand, ProjectsTheNormAndTurnsIt) {
  const NormQkvRopeKvWrite::Problem p = one_head();
  HostArgs<NormQkvRopeKvWrite> host(p, Spread::kContiguous);
  const NormQkvRopeKvWrite::Args& a = host.args();
  fill_by_hand(a);
  const auto device = cpu::open_device({.threads = 1}).value();
  const auto plan = make_plan<NormQkvRopeKvWrite>(*device, p);
  ASSERT_TRUE(plan.ok()) << plan.status().message;
  std::vector<std::byte> scratch(plan.value().workspace_bytes());
  ASSERT_TRUE(plan.value().run(a, {scratch.data(), scratch.size()}, device->stream()).ok());
  const double inverse = 1 / std::sqrt(12.5);
  EXPECT_NEAR(a.qkv.as<float>()[0], -6 * inverse, 1e-6);
  EXPECT_NEAR(a.qkv.as<float>()[1], 4 * inverse, 1e-6);
  EXPECT_NEAR(a.k_cache.as<float>()[0], -3 * inverse, 1e-6);
  EXPECT_NEAR(a.k_cache.as<float>()[1], 4 * inverse, 1e-6);
  EXPECT_NEAR(a.v_cache.as<float>()[0], 4 * inverse + 10, 1e-5);
  EXPECT_NEAR(a.v_cache.as<float>()[1], 6 * inverse, 1e-6);
}

// Sums of x times the weight, rounded to bf16 before the inverse root, are within the bound; those without the root, or with a bias
// that is normed too, are not.
TEST(NormQkvRopeKvWriteContract, TheInverseRootMayComeLast) {
  const NormQkvRopeKvWrite::Problem p = one_head();
  HostArgs<NormQkvRopeKvWrite> host(p, Spread::kContiguous);
  const NormQkvRopeKvWrite::Args& a = host.args();
  fill_by_hand(a);
  for (int64_t h = 0; h < 4; ++h) {
    a.x.as<float>()[h] += 0.01f * static_cast<float>(h + 1);
    a.norm_weight.as<BF16>()[h] = to_bf16(1.1f);
  }
  double squares = 0;
  for (int64_t h = 0; h < 4; ++h) squares += std::pow(load2(a.x, 0, h), 2);
  const double inverse = 1 / std::sqrt(squares / 4);
  const Expectations wanted = reference(p, a);
  const auto wrong = [&](double bias, double factor, double normed_bias) {
    for (int64_t h = 0; h < 2; ++h) {
      const double product = load2(a.x, 0, h) * load(a.norm_weight, h);
      const double rounded = static_cast<double>(to_float(to_bf16(static_cast<float>(product))));
      a.v_cache.as<float>()[h] =
          static_cast<float>(rounded * factor + (h == 0 ? bias + normed_bias * inverse : 0));
    }
    for (const Expected& e : wanted)
      if (e.slot == "v_cache") return compare(e, a.v_cache).wrong;
    return int64_t{-1};
  };
  EXPECT_EQ(wrong(10, inverse, 0), 0);
  EXPECT_EQ(wrong(10, 1, 0), 2);
  EXPECT_EQ(wrong(0, inverse, 10), 1);
}

}  // namespace
}  // namespace sluice::test
