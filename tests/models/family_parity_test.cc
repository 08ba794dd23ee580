// Small models of each family: logits within the noise of the runs recorded by tools/parity, and answers that
// do not depend on the batch.
#include <gtest/gtest.h>

#include <algorithm>

#include "harness/devices.h"
#include "harness/family_parity.h"
#include "harness/far_device.h"

namespace sluice::test {
namespace {

constexpr const char* kModels[] = {"qwen3_moe/renormalized", "qwen3_moe/tied",        "qwen3_moe/yarn",
                                   "qwen3_moe/dense",        "deepseek_v3/moonlight", "deepseek_v3/v3",
                                   "deepseek_v3/five",       "deepseek_v3/gpu",       "deepseek_v3/fp8"};

struct LoadedOn : FamilyParity {
  LoadedOn(const std::string& variant, DType x, std::unique_ptr<Device> device, const Policy& policy = {},
           std::unique_ptr<Device> experts = nullptr)
      : FamilyParity(*device, variant, x, policy, experts.get()),
        device_(std::move(device)),
        experts_(std::move(experts)) {}
  ~LoadedOn() { engine.reset(), model.reset(); }  // destroyed before their devices

 private:
  std::unique_ptr<Device> device_, experts_;
};

}  // namespace

// The bounds are explained in tests/models/parity_test.cc.
TEST(FamilyParity, LogitsInBf16AreWithinTheNoiseOfItsRoundings) {
  for (const char* model : kModels)
    for (auto& device : every_level(2)) {
      SCOPED_TRACE(text(device->info()));
      expect_within(LoadedOn(model, DType::kBF16, std::move(device)), model, 1, 4, 2);
    }
}

TEST(FamilyParity, LogitsInF32AreWithinTheNoiseOfItsSums) {
  for (const char* model : kModels)
    expect_within(LoadedOn(model, DType::kF32, cpu::open_device({.threads = 2}).value()), model, 0x1p-16, 16,
                  16);
}

TEST(FamilyParity, ExpertsOnADeviceOfTheirOwnAreWithinTheSameNoise) {
  for (const char* model : kModels)
    expect_within(LoadedOn(model, DType::kBF16, cpu::open_device({.threads = 2}).value(), {},
                           std::make_unique<FarDevice>()),
                  model, 1, 4, 2);
}

// Four prompts in a batch and each prompt alone: with one kernel for all token counts, the answers are the
// same.
TEST(FamilyParity, BatchedAnswersEqualThoseAlone) {
  for (const char* model : kModels) {
    const Recorded r = recorded_model(model);
    LoadedOn m(model, DType::kBF16, cpu::open_device({.threads = 2}).value(), {.batch_invariant = true});
    ASSERT_TRUE(m.engine);
    const auto answers = [&](const std::vector<std::vector<int32_t>>& prompts) {
      std::vector<std::vector<int32_t>> out(prompts.size());
      std::vector<int64_t> of;
      for (const auto& prompt : prompts) {
        Request request{.prompt = prompt};
        request.sampling.temperature = 0;
        request.sampling.max_tokens = 12;
        const auto added = m.engine->add(request);
        EXPECT_TRUE(added.ok()) << added.status().message;
        if (added.ok()) of.push_back(added.value());
      }
      while (!m.engine->idle()) {
        const auto tokens = m.engine->step();
        EXPECT_TRUE(tokens.ok()) << tokens.status().message;
        if (!tokens.ok()) return out;
        for (const GeneratedToken& t : tokens.value())
          out[static_cast<size_t>(std::find(of.begin(), of.end(), t.request) - of.begin())].push_back(t.id);
      }
      return out;
    };
    std::vector<std::vector<int32_t>> prompts;
    for (const int64_t length : {1, 7, 20, 33}) prompts.emplace_back(r.ids.end() - length, r.ids.end());
    const auto batched = answers(prompts);
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(answers({prompts[i]}).front(), batched[i]) << model << " prompt " << i;
      EXPECT_EQ(batched[i].size(), 12u);
    }
  }
}

}  // namespace sluice::test
