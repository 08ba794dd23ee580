// The suite of MoE layers on the GPU, and what only a GPU has.
#include <chrono>

#include "gpu/gpu.h"
#include "harness/moe_suite.h"

namespace sluice::test {

class MoeGpu : public OnGpu {
 protected:
  Device& target() { return gpu(); }
};

INSTANTIATE_TYPED_TEST_SUITE_P(Gpu, MoeOn, MoeGpu);

namespace {

// Two programs in one: the layer replays while another stream keeps the memory busy.
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
  cudaStream_t beside = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&beside, cudaStreamNonBlocking), cudaSuccess);
  int wrong = 0;
  for (int i = 0; i < 1000; ++i) {
    cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice, beside);
    wrong += run.replayed(*recording.value(), rows) != wanted;
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(cudaStreamSynchronize(beside), cudaSuccess);
  cudaStreamDestroy(beside);
}

// Matrices of gpt-oss's size, from a file that is in memory; says at what rate, allocations included.
TEST_F(MoeGpu, LoadsMatricesOfFullSize) {
  MoeConfig config = known_moe("gpt-oss-20b").value();
  config.experts = 64;
  const Model model(config);
  for (int round = 0; round < 4; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    const auto loaded = load_moe(gpu(), *model.file.checkpoint, for_backend(config, Backend::kCuda), {});
    const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    ASSERT_TRUE(loaded.ok()) << loaded.status().message;
    std::printf("[   note   ] %.0f MB at %.1f GB/s\n", 1e-6 * static_cast<double>(loaded.value()->bytes()),
                1e-9 * static_cast<double>(loaded.value()->bytes()) / s);
    const Status status = canary(gpu(), *loaded.value(), *model.file.checkpoint);
    ASSERT_TRUE(status.ok()) << status.message;
    const Status verified = loaded.value()->verify();
    ASSERT_TRUE(verified.ok()) << verified.message;
  }
}

}  // namespace
}  // namespace sluice::test
