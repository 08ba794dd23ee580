// Whole engines that draft with a multi-token-prediction layer: the answers of engines without drafts, and
// the recorded drafts.
#include <gtest/gtest.h>

#include <algorithm>

#include "backends/cpu/device.h"
#include "harness/engine_runs.h"
#include "harness/far_device.h"
#include "harness/recorded_logits.h"
#include "models/draft.h"

namespace sluice::test {
namespace {

const std::string kModel = "deepseek_v3/v3";
constexpr int64_t kVocab = 96;

// Allows only one token first, and then all tokens.
class FirstToken final : public TokenFilter {
 public:
  explicit FirstToken(int32_t id) : id_(id) {}
  Status allowed(std::span<uint32_t> bits, const std::stop_token&) override {
    std::fill(bits.begin(), bits.end(), id_ < 0 ? ~0u : 0u);
    if (id_ >= 0) bits[static_cast<size_t>(id_) / 32] |= 1u << (id_ % 32);
    return {};
  }
  Status accept(int32_t, const std::stop_token&) override { return id_ = -1, Status{}; }
  std::unique_ptr<TokenFilter> copy() const override { return std::make_unique<FirstToken>(*this); }

 private:
  int32_t id_;
};

class EngineMtp : public ::testing::Test {
 protected:
  EngineMtp() {
    auto model = LoadedModel::load(*device_, test_data(kModel));
    EXPECT_TRUE(model.ok()) << model.status().message;
    model_ = std::move(model).value();
    draft_ = load(nullptr);
  }
  std::unique_ptr<LoadedDraft> load(Device* experts) {
    auto made = LoadedDraft::load_mtp(*device_, test_data(kModel), *model_, {.experts = experts});
    EXPECT_TRUE(made.ok()) << made.status().message;
    return std::move(made).value();
  }
  std::unique_ptr<Engine> engine(const EngineOptions& options) {
    return engine_of(*device_, model_->config().decoder, model_->weights(), options);
  }
  EngineOptions drafting(const LoadedDraft& draft, int64_t drafts) {
    EngineOptions o = invariant();
    o.speculation = {.method = DraftMethod::kMtp, .num_speculative_tokens = drafts, .by_cost = false};
    o.draft_head = DraftHead{draft.config(), &draft.weights(), {.device = draft.experts()}};
    return o;
  }
  std::unique_ptr<Device> device_ = cpu::open_device({.threads = 2}).value();
  std::unique_ptr<LoadedModel> model_;
  std::unique_ptr<LoadedDraft> draft_;
};

}  // namespace

TEST_F(EngineMtp, AnswersAsWithoutIt) {
  for (const auto& requests : {some_requests, adjusted_requests}) {
    const auto wanted = run(*engine(invariant()), requests(kVocab));
    for (const int64_t drafts : {1, 3, 7}) {
      const auto drafting_engine = engine(drafting(*draft_, drafts));
      EXPECT_EQ(run(*drafting_engine, requests(kVocab)), wanted) << drafts;
      EXPECT_GT(drafting_engine->scheduler().draft_counts().draft_tokens, 0);
    }
  }
}

// With chunked prompts, with hits of the engine's own prefix cache, and with drafts chosen by cost.
TEST_F(EngineMtp, AnswersAsWithoutItFromThePrefixCacheAndByCost) {
  std::vector<Request> requests = some_requests(kVocab);
  requests.push_back(requests[2]);
  EngineOptions plain = invariant(), options = drafting(*draft_, 4);
  // Up to this many tokens, all steps run the same kernel.
  plain.max_num_batched_tokens = options.max_num_batched_tokens = 12;
  options.max_num_seqs = 3;
  const auto wanted = run(*engine(plain), requests);
  const auto small = engine(options);
  EXPECT_EQ(run(*small, requests), wanted);
  options.speculation.by_cost = true;
  EXPECT_EQ(run(*engine(options), requests), wanted);
}

TEST_F(EngineMtp, ExpertsOfTheDraftLayerMayBeOnAnotherDevice) {
  FarDevice far;
  const auto draft = load(&far);
  ASSERT_EQ(draft->experts(), &far);
  const auto requests = some_requests(kVocab);
  EXPECT_EQ(run(*engine(drafting(*draft, 3)), requests), run(*engine(invariant()), requests));
}

TEST_F(EngineMtp, DraftsAreTheRecordedOnes) {
  const auto file = Checkpoint::open(test_data(kModel + ".safetensors"));
  ASSERT_TRUE(file.ok()) << file.status().message;
  auto ids = values<int32_t>(*file.value(), "all.ids");
  const auto wanted = values<int32_t>(*file.value(), "mtp.drafts");
  const auto drafting_engine = engine(drafting(*draft_, std::ssize(wanted)));
  Request r{.filter = std::make_shared<FirstToken>(ids.back())};
  ids.pop_back();
  r.prompt = ids, r.sampling.temperature = 0, r.sampling.max_tokens = 16;
  ASSERT_TRUE(drafting_engine->add(r).ok());
  std::vector<int32_t> drafts;
  while (!drafting_engine->idle() && drafts.empty()) {
    ASSERT_TRUE(drafting_engine->step().ok());
    for (const auto& s : drafting_engine->scheduler().filtered())
      drafts = {s->drafts_now().begin(), s->drafts_now().end()};
  }
  EXPECT_EQ(drafts, wanted);
}

TEST_F(EngineMtp, ALayerOfAnotherMethodIsRefused) {
  EngineOptions options = drafting(*draft_, 3);
  options.speculation.method = DraftMethod::kEagle3;
  const auto made = Engine::make(*device_, model_->config().decoder, model_->weights(), options);
  EXPECT_EQ(made.status().message, "draft_head: wanted one of the method eagle3, found mtp");
}

}  // namespace sluice::test
