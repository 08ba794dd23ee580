// The suite of MoE layers on a device whose memory is not the host's.
#include "harness/far_device.h"
#include "harness/moe_suite.h"

namespace sluice::test {
namespace {

class OnFar : public ::testing::Test {
 protected:
  Device& target() { return device_; }

 private:
  FarDevice device_;
};

}  // namespace

INSTANTIATE_TYPED_TEST_SUITE_P(Far, MoeOn, OnFar);

}  // namespace sluice::test
