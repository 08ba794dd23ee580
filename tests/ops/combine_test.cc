#include "cases/combine.h"

#include "harness/conformance.h"

namespace sluice::test {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(Combine, Conformance, Combine);

class CombineByHand : public ::testing::Test {
 protected:
  // Row r of g holds 10 (r + 1), and the bias of expert e is e + 1. The slots refer to rows 2, 0 and none,
  // with weights 0.5, 2 and NaN.
  static HostArgs<Combine> inputs(const Combine::Problem& p) {
    HostArgs<Combine> host(p, Spread::kContiguous);
    const auto& a = host.args();
    set_each(a.g, [](int64_t row, int64_t) { return 10 * (row + 1); });
    set_each(a.position, [](int64_t, int64_t k) { return std::array{2, 0, -1}[static_cast<size_t>(k)]; });
    set_each(a.weights, [](int64_t, int64_t k) { return k == 0 ? 0.5 : k == 1 ? 2 : std::nan(""); });
    set_each(a.ids, [](int64_t, int64_t k) { return std::array{1, 0, 0}[static_cast<size_t>(k)]; });
    set_each(a.bias, [](int64_t expert, int64_t) { return expert + 1; });
    set_each(a.residual, [](int64_t, int64_t h) { return h; });
    return host;
  }
  static void run(const Combine::Problem& p, const Combine::Args& a) {
    const auto device = cpu::open_device({.threads = 1}).value();
    const auto plan = make_plan<Combine>(*device, p);
    ASSERT_TRUE(plan.ok()) << plan.status().message;
    const Status status = plan.value().run(a, {}, device->stream());
    ASSERT_TRUE(status.ok()) << status.message;
  }
  static constexpr Combine::Problem kProblem{.tokens = 1,
                                             .slots = 3,
                                             .rows = 3,
                                             .hidden = 37,
                                             .experts = 2,
                                             .bias = true,
                                             .residual = true,
                                             .scale = 2};
};

TEST_F(CombineByHand, WeighsTheBiasToo) {
  HostArgs<Combine> host = inputs(kProblem);
  run(kProblem, host.args());
  for (int64_t h = 0; h < kProblem.hidden; ++h)  // 2 * (0.5 * (30 + 2) + 2 * (10 + 1)) + h
    EXPECT_EQ(load2(host.args().y, 0, h), static_cast<double>(76 + h)) << h;
}

TEST_F(CombineByHand, MayWriteOntoTheResidual) {
  HostArgs<Combine> host = inputs(kProblem);
  Combine::Args args = host.args();
  args.y = args.residual;
  run(kProblem, args);
  for (int64_t h = 0; h < kProblem.hidden; ++h)
    EXPECT_EQ(load2(args.y, 0, h), static_cast<double>(76 + h)) << h;
}

// 2^24 + 1 rounds to 2^24, twice. The sum is 0 only in ascending slot order; it is 2 in descending order, and
// 1 in pairs.
TEST_F(CombineByHand, SumsInTheOrderOfTheSlots) {
  const Combine::Problem p{
      .tokens = 2, .slots = 4, .rows = 4, .hidden = 331, .g = DType::kF32, .y = DType::kF32};
  HostArgs<Combine> host(p, Spread::kContiguous);
  const auto& a = host.args();
  set_each(a.g, [](int64_t row, int64_t) {
    return std::array{0x1p24, 1., 1., -0x1p24}[static_cast<size_t>(row)];
  });
  set_each(a.position, [](int64_t, int64_t k) { return k; });
  set_each(a.weights, [](int64_t, int64_t) { return 1; });
  for (const auto& device : every_level(2)) {  // every vector width, and columns that fill no vector
    set_each(a.y, [](int64_t, int64_t) { return 5; });
    const auto plan = make_plan<Combine>(*device, p);
    ASSERT_TRUE(plan.ok()) << plan.status().message;
    ASSERT_TRUE(plan.value().run(a, {}, device->stream()).ok());
    for (int64_t t = 0; t < p.tokens; ++t)
      for (int64_t h = 0; h < p.hidden; ++h)
        ASSERT_EQ(load2(a.y, t, h), 0) << text(device->info()) << ", column " << h;
  }
}

}  // namespace
}  // namespace sluice::test
