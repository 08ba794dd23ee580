// A build that has no CUDA kernels, only their descriptors. The goldens of tests/golden/ are a part of this program too: cards say
// the same with and without their kernels.
#include <gtest/gtest.h>

#include "backends/backends.h"
#include "backends/cuda/device.h"

namespace sluice::test {
namespace {

bool says_what_to_do(const Status& status) {
  return status.code == Code::kUnsupported && status.message.find("no CUDA kernels") != std::string::npos &&
         status.message.find("./dev gpu") != std::string::npos;
}

TEST(CardsOnly, EachIsPlannedAndSaysHowToBuildItsKernel) {
  int kernels = 0;
  for_each_op([&]<class Op>() {
    for (const Candidate<Op>* c : cuda::catalog().table<Op>()) {
      EXPECT_TRUE(c->planned) << c->name;
      const Status status = c->enqueue ? c->enqueue({}, {}, {}, {}) : c->enqueue_config({}, {}, {}, {}, {});
      EXPECT_EQ(status.code, Code::kUnsupported) << c->name;
      kernels += says_what_to_do(status);
    }
  });
  EXPECT_GT(kernels, 20);  // the others have no kernel in any build
}

TEST(CardsOnly, NoDeviceOpens) {
  const auto device = open_device({.backend = Backend::kCuda});
  ASSERT_FALSE(device.ok());
  EXPECT_TRUE(says_what_to_do(device.status())) << device.status().message;
}

}  // namespace
}  // namespace sluice::test
