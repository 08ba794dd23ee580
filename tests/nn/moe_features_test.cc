// Optional inputs and outputs of an MoE layer, on this machine and on a device whose memory the host cannot
// access.
#include "harness/moe_features.h"

#include "harness/far_device.h"
#include "harness/offering_device.h"

namespace sluice::test {

class FeaturesHere : public testing::Test {
 protected:
  Device& target() { return *device_; }

 private:
  std::unique_ptr<Device> device_ = cpu::open_device({.threads = 2}).value();
};
class FeaturesFar : public testing::Test {
 protected:
  Device& target() { return device_; }

 private:
  FarDevice device_;
};
INSTANTIATE_TYPED_TEST_SUITE_P(Cpu, MoeFeaturesOn, FeaturesHere);
INSTANTIATE_TYPED_TEST_SUITE_P(Far, MoeFeaturesOn, FeaturesFar);

namespace {

TEST(MoeFeatures, ContradictionsAreRefusedByName) {
  const auto device = cpu::open_device({.threads = 1}).value();
  const auto message = [&](const char* fields, const MoeBackend& backend = {}, const Policy& policy = {}) {
    MoeConfig config = feature_config("gpt-oss-120b");
    EXPECT_TRUE(parse_fields(fields, &config).ok());
    return Moe::plan(*device, config, 100, policy, backend).status().message;
  };
  const auto of_one = [&](const char* fields) {
    OfferingDevice offering(*device);
    MoeConfig config = feature_config("gpt-oss-120b");
    EXPECT_TRUE(parse_fields(fields, &config).ok());
    return Moe::plan(offering, config, 100, {}, {.decode = "own", .prefill = "own"}).status().message;
  };
  EXPECT_EQ(message("input=packed lora_rank=4 lora_adapters=1"),
            "lora_rank: wanted 0 when the caller gives ids and weights (no router), found 4");
  EXPECT_EQ(message("lora_rank=4"),
            "lora_rank and lora_adapters: wanted both above 0 or neither, found 4 and 0");
  EXPECT_NE(message("per_expert=1 act=swiglu").find("an activation with parameters for per_expert"),
            std::string::npos);
  EXPECT_NE(of_one("per_expert=1")
                .find("moe: per_expert: wanted a kernel of expert_gemm, found cpu.expert_mlp.own"),
            std::string::npos);
  EXPECT_NE(message("", {.decode = "dot"}, {.batch_invariant = true}).find("batch_invariant"),
            std::string::npos);
  EXPECT_NE(message("", {.decode = "dots"}).find("did you mean"), std::string::npos);
  EXPECT_EQ(message("", {.decode_tokens = -1}), "moe backend: decode_tokens: wanted 0 or more, found -1");
}

}  // namespace
}  // namespace sluice::test
