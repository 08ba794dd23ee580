#include "nn/moe/canary.h"

#include <gtest/gtest.h>

#include "harness/devices.h"
#include "harness/moe_files.h"
#include "harness/offering_device.h"

namespace sluice::test {
namespace {

std::unique_ptr<LoadedMoe> loaded(Device& device, const Written& file, const MoeConfig& config,
                                  MoeNaming naming, const Slice& slice = {}) {
  auto out = load_moe(device, *file.checkpoint, config,
                      {.naming = naming, .layer = 3, .slice = slice, .threads = 1});
  EXPECT_TRUE(out.ok()) << out.status().message;
  return std::move(out).value();
}

TEST(Canary, EveryNamingSliceAndLevelPasses) {
  for (const auto& device : every_level(2)) {
    for (MoeNaming naming : kNamings) {
      const RandomMoe moe(small_config(naming), 5);
      const Written file(moe.tensors(naming, 3));
      for (const Slice& slice : {Slice{}, Slice{.tp_rank = 1, .tp_size = 2, .ep_rank = 1, .ep_size = 2},
                                 Slice{.tp_rank = 0, .tp_size = 5}}) {
        const auto layer = loaded(*device, file, moe.config, naming, slice);
        for (uint64_t seed : {1, 2}) {
          const Status status = canary(*device, *layer, *file.checkpoint, {.seed = seed});
          EXPECT_TRUE(status.ok()) << word(naming) << ": " << status.message;
        }
      }
    }
  }
}

TEST(Canary, FragmentsPass) {
  const auto device = cpu::open_device({.threads = 2}).value();
  for (MoeNaming naming : kNamings) {
    MoeConfig config = small_config(naming);
    config.layout = WeightLayout::kFragments;
    const RandomMoe moe(config, 5);
    const Written file(moe.tensors(naming, 3));
    const Slice slice{.tp_rank = 1, .tp_size = 2, .ep_rank = 1, .ep_size = 2};
    const auto layer = loaded(*device, file, config, naming, slice);
    const Status status = canary(*device, *layer, *file.checkpoint);
    EXPECT_TRUE(status.ok()) << word(naming) << ": " << status.message;
  }
}

// If all experts run as one fused operation, the canary checks that operation's kernel, too.
template <class OfExperts>
void expect_that_one_operation_passes() {
  const auto inner = cpu::open_device({.threads = 2}).value();
  Offering<OfExperts> device(*inner);
  for (MoeNaming naming : kNamings) {
    for (const bool weight_on_input : {false, true}) {
      MoeConfig config = small_config(naming);
      config.weight_on_input = weight_on_input, config.residual = true;
      const RandomMoe moe(config, 5);
      const Written file(moe.tensors(naming, 3));
      for (const Slice& slice : {Slice{}, Slice{.tp_rank = 1, .tp_size = 2, .ep_rank = 1, .ep_size = 2}}) {
        const auto layer = loaded(*inner, file, config, naming, slice);
        for (const int64_t tokens : {1, 2, 5}) {
          const auto step = plan_moe(device.info(), device.catalog(), layer->config(), tokens);
          ASSERT_TRUE(step.ok()) << step.status().message;
          int runs = 0;
          for (const PieceProblem& piece : step.value().problems(tokens))
            runs += piece.experts && piece.problem->op() == OfExperts::kName;
          EXPECT_EQ(runs, 1);
          const Status status = canary(device, *layer, *file.checkpoint, {.tokens = tokens});
          EXPECT_TRUE(status.ok()) << word(naming) << ": " << status.message;
        }
      }
    }
  }
}
TEST(Canary, FusedExpertsPass) { expect_that_one_operation_passes<ExpertMlp>(); }
TEST(Canary, GroupedExpertsPass) { expect_that_one_operation_passes<GroupedMlp>(); }

// change: modifies the layer's problem; the kernel runs the modified problem.
template <class OfExperts>
void expect_that_it_is_caught(void (*change)(ExpertMlp::Problem*), const char* kernel) {
  static void (*changes)(ExpertMlp::Problem*);
  changes = change;
  const auto inner = cpu::open_device({.threads = 1, .features_allowed = 0}).value();
  Offering<OfExperts> device(*inner, [](const typename OfExperts::Problem& p,
                                        const typename OfExperts::Args& a, Workspace w, Stream s) {
    typename OfExperts::Problem wrong = p;
    if constexpr (std::is_same_v<OfExperts, ExpertMlp>) {
      changes(&wrong);
    } else {
      changes(&wrong.mlp);
    }
    return Offering<OfExperts>::stage_by_stage(wrong, a, w, s);
  });
  const RandomMoe moe(small_config(MoeNaming::kGptOss), 5);
  const Written file(moe.tensors(MoeNaming::kGptOss, 3));
  const auto layer = loaded(*inner, file, moe.config, MoeNaming::kGptOss);
  EXPECT_TRUE(canary(*inner, *layer, *file.checkpoint).ok());
  const Status status = canary(device, *layer, *file.checkpoint);
  EXPECT_EQ(status.code, Code::kCorrupt);
  for (const char* words : {"layer 3: experts: expert ", kernel, "do not serve"})
    EXPECT_NE(status.message.find(words), std::string::npos) << status.message;
}
TEST(Canary, AWrongKernelOfAllExpertsIsCaught) {
  expect_that_it_is_caught<ExpertMlp>([](ExpertMlp::Problem* p) { p->scale = 1.125; },
                                      "from cpu.expert_mlp.");
}
TEST(Canary, AWrongKernelOfGroupedExpertsIsCaught) {
  expect_that_it_is_caught<GroupedMlp>([](ExpertMlp::Problem* p) { p->alpha = 1.5; },
                                       "from cpu.grouped_mlp.");
}

TEST(Canary, AWeightedInputPasses) {
  const auto device = cpu::open_device({.threads = 1}).value();
  MoeConfig config = small_config(MoeNaming::kQwen3Moe);
  config.method = RoutingMethod::kLlama4, config.top_k = 1, config.weight_on_input = true;
  const RandomMoe moe(config, 5);
  const Written file(moe.tensors(MoeNaming::kQwen3Moe, 3));
  const Status status =
      canary(*device, *loaded(*device, file, config, MoeNaming::kQwen3Moe), *file.checkpoint);
  EXPECT_TRUE(status.ok()) << status.message;
}

class Damaged : public testing::Test {
 protected:
  Damaged()
      : moe(small_config(MoeNaming::kGptOss), 5),
        file(moe.tensors(MoeNaming::kGptOss, 3)),
        device(cpu::open_device({.threads = 1}).value()) {
    layer = loaded(*device, file, moe.config, MoeNaming::kGptOss);
  }
  void expect_caught(const std::string& words) {
    const Status status = canary(*device, *layer, *file.checkpoint);
    EXPECT_EQ(status.code, Code::kCorrupt) << words;
    EXPECT_NE(status.message.find(words), std::string::npos) << status.message;
    EXPECT_NE(status.message.find("do not serve"), std::string::npos) << status.message;
  }
  RandomMoe moe;
  Written file;
  std::unique_ptr<Device> device;
  std::unique_ptr<LoadedMoe> layer;
};

TEST_F(Damaged, ACorruptedByteInACheckedRow) {
  // The canary always checks row 0 of the first expert's W13 and the last row of the last expert's W2.
  uint8_t* up = layer->weights().experts.up.as<uint8_t>();
  up[0] ^= 0x44;
  expect_caught("layer 3: experts.up: expert 0, feature 0: wanted ");
  up[0] ^= 0x44;
  const Tensor down = layer->weights().experts.down;
  const PanelShape s = panel_shape(96, false, 160);
  uint8_t* byte = down.row<uint8_t>(7) + panel_mxfp4_nibble(s, panel_row(false, 95, false), 70).byte;
  *byte ^= 0x44;
  expect_caught("layer 3: experts.down: expert 7, feature 95: wanted ");
  *byte ^= 0x44;
  EXPECT_TRUE(canary(*device, *layer, *file.checkpoint).ok());
}

TEST_F(Damaged, AScaleThatIsOffByOne) {
  layer->weights().experts.up_scale.as<uint8_t>()[0] += 1;
  expect_caught("experts.up: expert 0, feature 0");
}

TEST_F(Damaged, GateAndUpSwapped) {
  const PanelShape s = panel_shape(160, true, 96);
  const int64_t panel = s.code_bytes({DType::kE2M1}) / s.panels;
  for (int64_t e = 0; e < 8; ++e)
    for (int64_t q = 0; q < s.panels; q += 2) {
      uint8_t* gate = layer->weights().experts.up.row<uint8_t>(e) + q * panel;
      std::swap_ranges(gate, gate + panel, gate + panel);
    }
  expect_caught("experts.up: expert 0");
}

TEST_F(Damaged, ABiasOfAnotherRow) {
  uint16_t* bias = layer->weights().experts.down_bias.as<uint16_t>();
  std::swap(bias[0], bias[1]);
  expect_caught("experts.down: expert 0, feature 0");
}

TEST_F(Damaged, ExpertsInAnotherOrder) {
  const Tensor w = layer->weights().experts.up;
  std::swap_ranges(w.row<uint8_t>(0), w.row<uint8_t>(1), w.row<uint8_t>(7));
  expect_caught("experts.up: expert 0");
}

TEST_F(Damaged, AnotherCheckpoint) {
  const RandomMoe other(moe.config, 6);
  const Written another(other.tensors(MoeNaming::kGptOss, 3));
  EXPECT_EQ(canary(*device, *layer, *another.checkpoint).code, Code::kCorrupt);
}

TEST_F(Damaged, VerifyFindsErrorsInRowsThatTheCanarySkips) {
  const PanelShape s = panel_shape(160, true, 96);
  uint8_t* byte =
      layer->weights().experts.up.row<uint8_t>(4) + panel_mxfp4_nibble(s, panel_row(true, 81, true), 50).byte;
  *byte ^= 1;
  const Status status = layer->verify();
  EXPECT_EQ(status.code, Code::kCorrupt);
  EXPECT_NE(status.message.find("layer 3: packed weights: expert 4: fingerprint"), std::string::npos)
      << status.message;
}

}  // namespace
}  // namespace sluice::test
