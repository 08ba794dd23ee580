#include "cases/expert_mlp.h"

#include "harness/conformance.h"

namespace sluice::test {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(ExpertMlp, Conformance, ExpertMlp);

TEST(ExpertMlpContract, EveryBrokenBoundOnce) {
  const ExpertMlp::Problem p{.tokens = -1,
                             .slots = 65,
                             .experts = 9,
                             .experts_routed = 8,
                             .hidden = 40,
                             .intermediate = 0,
                             .x = DType::kI32,
                             .g = DType::kE2M1,
                             .act = Activation::kSwiGluClamped,
                             .scale = 1e31};
  const Refusal refusal = ExpertMlp::validate(p);
  const std::string line = refusal.line();
  for (const char* reason :
       {"tokens from 0 to", "tokens=-1", "slots from 1 to 64; slots=65",
        "experts_routed 0 or at least experts; experts_routed=8",
        "hidden % 32 == 0 (codes come in blocks of 32); hidden=40",
        "intermediate from 1 to 65536; intermediate=0", "x in f32 or bf16; x=i32", "g in f32 or bf16; g=e2m1",
        "limit above 0 (infinity is no limit); limit=0", "scale a finite number"})
    EXPECT_NE(line.find(reason), std::string::npos) << reason << " is not in: " << line;
  EXPECT_EQ(refusal.reasons().size(), 9u) << line;
}

// Each part of a legal problem is legal, so kernels composed of the parts meet only problems that the parts
// know.
TEST(ExpertMlpContract, ALegalProblemHasLegalParts) {
  Random random(3);
  int legal = 0;
  for (int round = 0; round < 2000; ++round) {
    const ExpertMlp::Problem p = Suite<ExpertMlp>::random(random);
    Refusal parts = GroupRows::validate(ExpertMlp::group(p));
    parts.append(ExpertGemm::validate(ExpertMlp::up(p))).append(ExpertGemm::validate(ExpertMlp::down(p)));
    parts.append(Combine::validate(ExpertMlp::combine(p)));
    EXPECT_EQ(ExpertMlp::validate(p).accepted(), parts.accepted())
        << fields_text(p) << ": " << ExpertMlp::validate(p).line() << " / " << parts.line();
    legal += parts.accepted();
  }
  EXPECT_GT(legal, 200);
  EXPECT_LT(legal, 2000);
}

// The weights have one nonzero element each, so y is known by hand: the weighted experts' outputs, times the
// scale, plus the residual.
TEST(ExpertMlpContract, ByHand) {
  const ExpertMlp::Problem p{.tokens = 1,
                             .slots = 3,
                             .experts = 2,
                             .hidden = 2,
                             .intermediate = 2,
                             .x = DType::kF32,
                             .w = DType::kBF16,
                             .g = DType::kF32,
                             .y = DType::kF32,
                             .layout = WeightLayout::kRowMajor,
                             .act = Activation::kRelu2,
                             .down_bias = true,
                             .residual = true,
                             .scale = 2};
  HostArgs<ExpertMlp> host(p, Spread::kContiguous);
  const ExpertMlp::Args& a = host.args();
  set_each(a.x, [](int64_t, int64_t c) { return c == 0 ? 3 : -1; });
  set_each(a.up, [](int64_t, int64_t i) { return i % 3 == 0 ? 1 : 0; });
  set_each(a.down, [](int64_t e, int64_t i) { return i % 3 == 0 ? static_cast<double>(e + 1) : 0; });
  set_each(a.down_bias, [](int64_t e, int64_t) { return static_cast<double>(e); });
  set_each(a.residual, [](int64_t, int64_t c) { return static_cast<double>(10 * (c + 1)); });
  set_each(a.weights, [](int64_t, int64_t k) { return k == 0 ? 0.5 : k == 1 ? 0.25 : 8; });
  const auto put = [](const Tensor& t, std::initializer_list<int32_t> values) {
    std::copy(values.begin(), values.end(), t.as<int32_t>());
  };
  put(a.ids, {1, 0, 2});  // the last expert is on another rank; its weight is not read
  const auto device = cpu::open_device({.threads = 1}).value();
  const auto plan = plan_op<ExpertMlp>(*device, p);
  ASSERT_TRUE(plan.ok()) << plan.status().message;
  std::vector<std::byte> scratch(plan.value().workspace_bytes());
  ASSERT_TRUE(plan.value().run(a, {scratch.data(), scratch.size()}, device->stream()).ok());
  // h = (9, 0); expert 0: (9, 0), expert 1: (18, 0) + 1; y = 2 * (0.5 * expert 1 + 0.25 * expert 0) + residual.
  EXPECT_FLOAT_EQ(a.y.as<float>()[0], 2 * (0.5f * 19 + 0.25f * 9) + 10);
  EXPECT_FLOAT_EQ(a.y.as<float>()[1], 2 * (0.5f * 1) + 20);
  const Expectations wanted = reference(p, a);
  EXPECT_EQ(compare(wanted[0], a.y).wrong, 0);
  EXPECT_LT(wanted[0].bound[0], 1e-4);
}

}  // namespace
}  // namespace sluice::test
