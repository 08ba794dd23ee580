// MoE layers compared with PyTorch on this machine, at every level of vector instructions, and on a device
// with its own memory.
#include "harness/moe_oracle.h"

#include "harness/devices.h"
#include "harness/far_device.h"

namespace sluice::test {
namespace {

class OracleOnCpu : public ::testing::Test {
 public:
  static constexpr bool kF32 = true;

 protected:
  std::vector<Device*> targets() {
    std::vector<Device*> out;
    for (const auto& device : devices_) out.push_back(device.get());
    return out;
  }

 private:
  std::vector<std::unique_ptr<Device>> devices_ = every_level(2);
};

class OracleOnFar : public ::testing::Test {
 public:
  static constexpr bool kF32 = true;

 protected:
  std::vector<Device*> targets() { return {&device_}; }

 private:
  FarDevice device_;
};

}  // namespace

INSTANTIATE_TYPED_TEST_SUITE_P(Cpu, MoeOracleOn, OracleOnCpu);
INSTANTIATE_TYPED_TEST_SUITE_P(Far, MoeOracleOn, OracleOnFar);

}  // namespace sluice::test
