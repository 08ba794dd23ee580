// MoE layers compared with PyTorch on the GPU.
#include "harness/moe_oracle.h"

#include "gpu/gpu.h"

namespace sluice::test {

class OracleOnGpu : public OnGpu {
 public:
  static constexpr bool kF32 = false;

 protected:
  std::vector<Device*> targets() { return {&gpu()}; }
};

INSTANTIATE_TYPED_TEST_SUITE_P(Gpu, MoeOracleOn, OracleOnGpu);

}  // namespace sluice::test
