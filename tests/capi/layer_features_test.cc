#include "capi/layer_features.h"

namespace sluice::test {
namespace {

TEST(CapiLayerFeatures, GiveTheBitsOfTheCppLayer) { features::all_agree(Backend::kCpu); }

TEST(CapiLayerFeatures, TensorsBesideACheckpointAreNamed) {
  MoeConfig config = small_config(MoeNaming::kGptOss);
  config.per_expert = true;
  const RandomMoe moe(config, 5);
  const CapiDevice device;
  CapiLayer layer(device, config);
  const CallersTensors tensors(moe.tensors(MoeNaming::kGptOss, 0));
  Message error;
  EXPECT_EQ(layer.load(tensors, error), SLUICE_INVALID_ARGUMENT);
  EXPECT_NE(error.str().find("per_expert: wanted tensor 'experts.act_params' supplied by the caller"),
            std::string::npos)
      << error.str();
}

}  // namespace
}  // namespace sluice::test
