// A layer's features through the C ABI on the GPU, with weights from the host and from GPU memory.
#include "capi/layer_features.h"
#include "gpu/gpu.h"

namespace sluice::test {
namespace {

class GpuCapiLayer : public OnGpu {};

TEST_F(GpuCapiLayer, FeaturesGiveTheBitsOfTheCppLayer) { features::all_agree(Backend::kCuda); }

}  // namespace
}  // namespace sluice::test
