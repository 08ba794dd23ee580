// The suite of MoE layers on a device whose memory is not the host's.
#include "harness/far_device.h"
#include "harness/moe_suite.h"
#include "nn/moe/offloaded.h"

namespace sluice::test {
namespace {

class OnFar : public ::testing::Test {
 protected:
  Device& target() { return device_; }

 private:
  FarDevice device_;
};

// A call whose tensors are the host's, and one that is refused.
TEST_F(OnFar, ALayerApartTakesTheHostsTensors) {
  MoeConfig config = small_gpt_oss();
  config.residual = true;
  const Model model(config);
  const auto loaded = model.load(target());
  const auto cpu = cpu::open_device({.threads = 2}).value();
  const auto here = model.load(*cpu);
  const auto offloaded = OffloadedMoe::plan(target(), loaded->config(), 9);
  const auto near = Moe::plan(*cpu, here->config(), 9);
  ASSERT_TRUE(offloaded.ok() && near.ok()) << offloaded.status().message << near.status().message;
  const auto scratch = OwnedTensor::make(
      *cpu, slot("", Role::kIn, DType::kU8, {static_cast<int64_t>(near.value()->workspace_bytes())}), "test");
  ASSERT_TRUE(scratch.ok());
  for (int64_t tokens : {9, 4, 0}) {
    auto x = random_rows(tokens, config.hidden, 3), residual = random_rows(tokens, config.hidden, 4);
    const auto call = [&](auto forward) {
      auto y = residual;  // in place
      const auto view = [&](std::vector<uint16_t>& v) {
        v.reserve(1);  // a tensor without rows has an address all the same
        return make_tensor(v.data(), DType::kBF16, {tokens, config.hidden});
      };
      const Status status = forward(MoeIo{.x = view(x), .residual = view(y), .token_ids = {}, .y = view(y)});
      EXPECT_TRUE(status.ok()) << status.message;
      return numbers_of(y);
    };
    const auto got = call([&](const MoeIo& io) { return offloaded.value()->forward(io, loaded->weights()); });
    const auto want = call([&](const MoeIo& io) {
      const Workspace workspace{scratch.value().view().as<std::byte>(), near.value()->workspace_bytes()};
      return near.value()->forward(io, here->weights(), workspace, cpu->stream());
    });
    // The stream is added last: what remains without it is the layer's own.
    std::vector<double> ours(got.size()), theirs(want.size());
    const auto stream = numbers_of(residual);
    for (size_t i = 0; i < got.size(); ++i) ours[i] = got[i] - stream[i], theirs[i] = want[i] - stream[i];
    if (tokens > 0) (void)agree(model.moe, x, ours, theirs, 4);
  }
  auto x = random_rows(10, config.hidden, 3);
  const Tensor many = make_tensor(x.data(), DType::kBF16, {10, config.hidden});
  const Status status = offloaded.value()->forward({.x = many, .residual = many, .token_ids = {}, .y = many},
                                                   loaded->weights());
  EXPECT_NE(status.message.find("offloaded moe: wanted 0 to 9 tokens (the plan's bound), found 10"),
            std::string::npos)
      << status.message;
  const Tensor few = make_tensor(x.data(), DType::kBF16, {4, config.hidden});
  const Status without =
      offloaded.value()->forward({.x = few, .residual = {}, .token_ids = {}, .y = few}, loaded->weights());
  EXPECT_NE(without.message.find("offloaded moe: residual"), std::string::npos) << without.message;
}

}  // namespace

INSTANTIATE_TYPED_TEST_SUITE_P(Far, MoeOn, OnFar);

}  // namespace sluice::test
