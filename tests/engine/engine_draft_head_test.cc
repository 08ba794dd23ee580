// Whole engines with a draft head give the answers of engines without one, and drafts depend only on the
// sequence's tokens.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "harness/devices.h"
#include "harness/far_model.h"
#include "harness/small_head.h"
#include "harness/sum_filter.h"

namespace sluice::test {
namespace {

// Allows only tokens that the head can draft, so that some drafts are accepted.
class HeadTokensFilter final : public TokenFilter {
 public:
  Status allowed(std::span<uint32_t> bits, const std::stop_token&) override {
    std::fill(bits.begin(), bits.end(), 0u);
    for (const int32_t id : kHeadTokens) bits[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
    return {};
  }
  Status accept(int32_t, const std::stop_token&) override { return {}; }
  std::unique_ptr<TokenFilter> copy() const override { return std::make_unique<HeadTokensFilter>(*this); }
};

Request greedy_request(std::vector<int32_t> prompt, int64_t tokens) {
  Request r{.prompt = std::move(prompt), .filter = std::make_shared<HeadTokensFilter>()};
  r.sampling.temperature = 0, r.sampling.max_tokens = tokens;
  return r;
}

std::vector<Request> greedy_requests(int64_t tokens) {
  std::vector<Request> out;
  for (Request& r : some_requests()) out.push_back(greedy_request(std::move(r.prompt), tokens));
  return out;
}

using Drafts = std::map<std::vector<int32_t>, std::vector<int32_t>>;  // by the tokens before them

// Runs the requests and records the drafts after every step.
Drafts drafts_of(Engine* engine, std::vector<Request> requests) {
  Drafts out;
  for (Request& r : requests) EXPECT_TRUE(engine->add(std::move(r)).ok());
  while (!engine->idle()) {
    const auto tokens = engine->step();
    EXPECT_TRUE(tokens.ok()) << tokens.status().message;
    if (!tokens.ok()) return out;
    for (const auto& s : engine->scheduler().filtered())
      if (const auto drafts = s->drafts_now(); !drafts.empty())
        out[s->tokens] = {drafts.begin(), drafts.end()};
  }
  return out;
}

class EngineDraftHead : public ::testing::Test {
 protected:
  // f32, because the head's kernels depend on the batch and rounding must not change a draft.
  std::unique_ptr<Device> device_ = cpu::open_device({.threads = 2}).value();
  DecoderModel model_{small_decoder().with_activations(DType::kF32)};
  DraftLayerConfig config_ = small_head(DType::kF32);
  HeadWeights head_{config_};

  EngineOptions drafting(int64_t drafts, EngineOptions options = invariant()) {
    options.speculation = {
        .method = DraftMethod::kEagle3, .num_speculative_tokens = drafts, .by_cost = false};
    options.draft_head = DraftHead{config_, &head_.weights};
    return options;
  }
  // The drafts of an engine that computes all tokens but the last as one prompt.
  std::vector<int32_t> fresh_drafts(const std::vector<int32_t>& tokens, int64_t drafts) {
    const auto engine = engine_of(*device_, model_, drafting(drafts));
    std::vector<Request> one;
    one.push_back(greedy_request({tokens.begin(), tokens.end() - 1}, drafts + 2));
    const Drafts found = drafts_of(engine.get(), std::move(one));
    const auto at = found.find(tokens);
    return at == found.end() ? std::vector<int32_t>() : at->second;
  }
  void expect_fresh(const Drafts& found, int64_t most) {
    ASSERT_FALSE(found.empty());
    std::set<std::vector<int32_t>> different;
    for (const auto& [tokens, drafts] : found) {
      std::vector<int32_t> wanted = fresh_drafts(tokens, most);
      wanted.resize(drafts.size());  // fewer near the end of an answer
      EXPECT_EQ(drafts, wanted) << tokens.size() << " tokens";
      different.insert(drafts);
    }
    EXPECT_GT(different.size(), 3u);
  }
};

}  // namespace

TEST_F(EngineDraftHead, AnswersAsWithoutIt) {
  for (const auto& requests : {some_requests, adjusted_requests}) {
    const auto wanted = run(*engine_of(*device_, model_, invariant()), requests(kSmallVocab));
    for (const int64_t drafts : {1, 3, 7}) {
      const auto engine = engine_of(*device_, model_, drafting(drafts));
      EXPECT_EQ(run(*engine, requests(kSmallVocab)), wanted) << drafts;
      EXPECT_GT(engine->scheduler().draft_counts().draft_tokens, 0);
    }
  }
}

TEST_F(EngineDraftHead, DraftsDependOnlyOnTheTokens) {
  const auto engine = engine_of(*device_, model_, drafting(4));
  const Drafts found = drafts_of(engine.get(), greedy_requests(30));
  const DraftCounts counts = engine->scheduler().draft_counts();
  EXPECT_GT(counts.accepted_at[1], 0);
  EXPECT_LT(counts.accepted, counts.draft_tokens);
  expect_fresh(found, 4);
}

TEST_F(EngineDraftHead, AlsoAfterChunksOfPromptsAndPreemptions) {
  EngineOptions options = drafting(3);
  options.max_num_seqs = 3, options.max_num_batched_tokens = 12, options.max_model_len = 64;
  options.prefix_cache = false;
  DecoderConfig with_head = model_.config;
  with_head.draft_attention = config_.attention;
  options.kv_cache_bytes = bytes_of_pages(with_head, options.page_size, 24);
  const auto engine = engine_of(*device_, model_, options);
  const Drafts found = drafts_of(engine.get(), greedy_requests(24));
  EXPECT_GT(engine->scheduler().preemptions(), 0);
  EXPECT_EQ(engine->scheduler().free_pages(), 24);
  expect_fresh(found, 3);
}

// On this device, greedy and sampled answers get their logprobs from different kernels, so the two kinds are
// compared separately.
TEST_F(EngineDraftHead, OnADeviceWithMemoryOfItsOwn) {
  FarModel far;
  DraftLayerConfig config = small_head();
  config.mlp.intermediate = 64, config.mlp.layout = layout_for(Backend::kCuda);
  config.attention.layout = WeightLayout::kRowMajor;
  const HeadWeights host(config);
  const DeviceWeights weights(far.device(), host.weights);
  for (const double temperature : {0.0, 0.8}) {
    std::vector<Request> requests = some_requests();
    for (Request& r : requests) r.sampling.temperature = temperature;
    const auto wanted = run(*far.plain_engine(), requests);
    for (const int64_t sequences : {1, 3}) {
      EngineOptions options = drafting(4);
      options.max_num_seqs = sequences;
      options.draft_head = DraftHead{config, &weights.get()};
      const auto engine = far.engine(options);
      EXPECT_EQ(run(*engine, requests), wanted) << temperature << ", " << sequences;
      EXPECT_GT(engine->scheduler().draft_counts().draft_tokens, 0);
    }
  }
}

TEST_F(EngineDraftHead, WhereDraftsDoNotPayNoneAreMade) {
  EngineOptions options = drafting(7);
  options.speculation.by_cost = true;
  const auto requests = some_requests();
  const auto wanted = run(*engine_of(*device_, model_, invariant()), requests);
  EXPECT_EQ(run(*engine_of(*device_, model_, options), requests), wanted);
}

TEST_F(EngineDraftHead, NaNOfTheHeadChangesNoAnswer) {
  const auto requests = some_requests();
  const auto wanted = run(*engine_of(*device_, model_, invariant()), requests);
  const Tensor norm = head_.weights(-1, "final_norm");
  std::fill_n(norm.as<uint16_t>(), elements_of(norm), uint16_t{0x7FC0});
  const auto engine = engine_of(*device_, model_, drafting(3));
  EXPECT_EQ(engine->draft_counts().not_finite, 0);
  EXPECT_EQ(run(*engine, requests), wanted);
  EXPECT_GT(engine->draft_counts().not_finite, 0);
  EXPECT_EQ(engine->draft_counts().draft_tokens, 0) << "no such draft is verified";
}

TEST_F(EngineDraftHead, AHeadThatDoesNotFitIsRefused) {
  const auto message = [&](const EngineOptions& options) {
    const auto made = Engine::make(*device_, model_.config, model_.weights, options);
    return made.ok() ? "" : made.status().message;
  };
  EngineOptions options = drafting(3);
  options.draft_head.reset();
  EXPECT_EQ(message(options), "draft_head: wanted one with the method eagle3, found none");
  options = drafting(3);
  options.speculation.method = DraftMethod::kNone;
  EXPECT_EQ(message(options), "draft_head: wanted none with the method none, found one");
  options = drafting(3);
  options.draft_head->config.model_hidden = 32;
  EXPECT_EQ(message(options), "draft_head: model_hidden: wanted the model's 64, found 32");
  options = drafting(3);
  options.draft_head->config.taps = {0, 2, 5};
  EXPECT_EQ(message(options), "decoder: taps: wanted layers from 0 to 4, found 5");
}

}  // namespace sluice::test
