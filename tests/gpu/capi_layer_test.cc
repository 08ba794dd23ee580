// A layer's optional inputs and outputs through the C ABI on the GPU, with weights from host memory and from
// GPU memory.
#include "capi/layer_features.h"
#include "gpu/gpu.h"

namespace sluice::test {
namespace {

class GpuCapiLayer : public OnGpu {};

TEST_F(GpuCapiLayer, FeaturesGiveTheBitsOfTheCppLayer) { features::all_agree(Backend::kCuda); }

}  // namespace
}  // namespace sluice::test
