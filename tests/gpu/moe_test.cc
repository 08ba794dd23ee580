// The test suite of MoE layers on the GPU, and tests that need a GPU.
#include "gpu/gpu.h"
#include "harness/moe_features.h"
#include "harness/moe_suite.h"
#include "nn/moe_adapters.h"

namespace sluice::test {

class MoeGpu : public OnGpu {
 protected:
  Device& target() { return gpu(); }
};

INSTANTIATE_TYPED_TEST_SUITE_P(Gpu, MoeOn, MoeGpu);
INSTANTIATE_TYPED_TEST_SUITE_P(Gpu, MoeFeaturesOn, MoeGpu);
INSTANTIATE_TYPED_TEST_SUITE_P(Gpu, MoeAdaptersOn, MoeGpu);

namespace {

// The layer replays while another stream of the same process keeps memory busy with copies.
TEST_F(MoeGpu, AThousandReplaysBesideCopiesHaveTheSameBits) {
  const Model model(small_gpt_oss());
  const auto loaded = model.load(gpu());
  Running run(gpu(), loaded->config(), 33);
  const auto rows = random_rows(33, loaded->config().hidden, 21);
  const auto recording = run.record(33, loaded->weights());
  ASSERT_TRUE(recording.ok()) << recording.status().message;
  const auto wanted = run.eager(rows, loaded->weights());
  constexpr size_t kBytes = size_t{64} << 20;
  Loan from(gpu(), kBytes), to(gpu(), kBytes);
  from.clear();
  cudaStream_t beside = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&beside, cudaStreamNonBlocking), cudaSuccess);
  int wrong = 0;
  const int replays = count_from("SLUICE_MOE_REPLAYS", 1000);
  for (int i = 0; i < replays; ++i) {
    cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice, beside);
    wrong += run.replayed(*recording.value(), rows) != wanted;
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(cudaStreamSynchronize(beside), cudaSuccess);
  cudaStreamDestroy(beside);
}

}  // namespace
}  // namespace sluice::test
