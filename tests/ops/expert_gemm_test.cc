#include "cases/expert_gemm.h"

#include "harness/conformance.h"

namespace sluice::test {

INSTANTIATE_TYPED_TEST_SUITE_P(ExpertGemm, Conformance, ExpertGemm);

// A batch-invariant kernel gives a row alone the bits that the row has among the 77 rows of its expert.
TEST(ExpertGemmBatch, RowsAloneHaveTheSameBits) {
  for (WeightLayout layout : {WeightLayout::kPanels16, WeightLayout::kRowMajor, WeightLayout::kFragments}) {
    for (DType w : {DType::kE2M1, DType::kBF16}) {
      ExpertGemm::Problem all{
          .rows = 77, .experts = 1, .features = 20, .width = 96, .w = w, .y = DType::kF32};
      all.layout = layout, all.act = Activation::kSwiGlu;
      HostArgs<ExpertGemm> host(all, Spread::kContiguous);
      Random random(9);
      Suite<ExpertGemm>::fill(all, Fill::kNormal, host, random);
      ExpertGemm::Problem one = all;
      one.rows = 1;
      for (const auto& device : every_level(2)) {
        for (const Candidate<ExpertGemm>* c : device->catalog().table<ExpertGemm>()) {
          if (!c->batch_invariant || !c->supports(all, device->info()).accepted()) continue;
          if (!c->supports(one, device->info()).accepted()) continue;
          const Config for_all = best_config(*c, all, device->info()),
                       for_one = best_config(*c, one, device->info());
          const size_t bytes = std::max(for_all.workspace_bytes, for_one.workspace_bytes);
          void* scratch = device->allocate(bytes).value();
          const Workspace workspace{static_cast<std::byte*>(scratch), bytes};
          int32_t begin[2] = {0, 77}, count = 77;
          ExpertGemm::Args args = host.args();
          args.row_begin.data = begin, args.row_count.data = &count;
          ASSERT_TRUE(enqueue(*c, all, for_all.launches, args, workspace, device->stream()).ok());
          begin[1] = count = 1;
          float alone[20];
          for (int64_t r : {0, 5, 63, 64, 76}) {
            args.x.data = host.args().x.row<BF16>(r);
            args.y.data = alone;
            ASSERT_TRUE(enqueue(*c, one, for_one.launches, args, workspace, device->stream()).ok());
            EXPECT_EQ(std::memcmp(alone, host.args().y.row<float>(r), sizeof alone), 0)
                << c->name << " on " << text(device->info()) << ", row " << r;
          }
          device->release(scratch);
        }
      }
    }
  }
}

// All kernels are compared with this function: kSwiGluStep clamps the gate only from above.
TEST(Activation, StepFormClampsTheGateFromAbove) {
  const ActivationParams params{.limit = 0.1};
  const double silu = -1 / (1 + std::exp(1.0));  // silu(-1), below -limit
  EXPECT_DOUBLE_EQ(activate(Activation::kSwiGluStep, params, {-1, 0}, {0.05, 0}).value, silu * 0.05);
  EXPECT_DOUBLE_EQ(activate(Activation::kSwiGluStep, params, {3, 0}, {0.05, 0}).value, 0.1 * 0.05);
  EXPECT_DOUBLE_EQ(activate(Activation::kSwiGluStep, params, {3, 0}, {-7, 0}).value, 0.1 * -0.1);
}

// Experts of other ranks receive their share of the rows, so costs count only the rows of this rank, at any
// token count.
TEST(ExpertGemmProblem, ExpectsTheRowsOfItsOwnExperts) {
  ExpertGemm::Problem p{.rows = 64, .experts = 32, .tokens = 16, .slots = 4};
  EXPECT_EQ(ExpertGemm::expected_rows(p), 64);
  p.experts_routed = 256;
  EXPECT_TRUE(ExpertGemm::validate(p).accepted());
  EXPECT_EQ(ExpertGemm::expected_rows(p), 8);
  EXPECT_EQ(ExpertGemm::expected_rows(ExpertGemm::at_tokens(ExpertGemm::at_tokens(p, 0), 32)), 16);
  p.rows_expected = 3;
  EXPECT_EQ(ExpertGemm::expected_rows(p), 3);
  p.experts_routed = 31;
  const Refusal refusal = ExpertGemm::validate(p);
  ASSERT_FALSE(refusal.accepted());
  EXPECT_NE(refusal.reasons()[0].find("experts_routed"), std::string::npos) << refusal.reasons()[0];
}

}  // namespace sluice::test
