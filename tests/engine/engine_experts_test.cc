// How many tokens each expert of each layer got: all that was computed, nothing else, whatever way the steps take.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "backends/cpu/device.h"
#include "harness/engine_runs.h"
#include "harness/far_model.h"
#include "harness/wrapped_device.h"

namespace sluice::test {
namespace {

EngineOptions counting(EngineOptions options = invariant()) {
  options.count_experts = true;
  return options;
}
EngineOptions counting_ahead(int64_t recorded) {
  EngineOptions options = counting();
  options.steps_ahead = 1, options.recorded_sequences = recorded;
  return options;
}

// Of each layer.
std::vector<int64_t> sums(const ExpertCounts& counts) {
  std::vector<int64_t> out;
  for (auto layer = counts.tokens.begin(); layer != counts.tokens.end(); layer += counts.experts)
    out.push_back(std::accumulate(layer, layer + counts.experts, int64_t{0}));
  return out;
}

// Tokens of the prompts and of the answers but the last one's of each, which no step computes.
int64_t computed(const std::vector<Request>& requests) {
  int64_t out = 0;
  for (const Request& r : requests) out += std::ssize(r.prompt) + *r.sampling.max_tokens - 1;
  return out;
}

class EngineExperts : public ::testing::Test {
 protected:
  std::unique_ptr<Device> device_ = cpu::open_device({.threads = 2}).value();
  DecoderModel model_{small_decoder()};
  std::vector<int64_t> of_tokens(int64_t tokens) const {
    return std::vector<int64_t>(model_.config.layers.size(), tokens * model_.config.moe().top_k);
  }
  static std::vector<int64_t> counted(Engine& engine) {
    const Status status = engine.ask_expert_counts();
    EXPECT_TRUE(status.ok()) << status.message;
    return engine.expert_counts()->tokens;
  }
  std::vector<int64_t> counted(const EngineOptions& options, const std::vector<Request>& requests) {
    const auto engine = engine_of(*device_, model_, options);
    (void)run(*engine, requests);
    const auto tokens = counted(*engine);
    EXPECT_EQ(sums(*engine->expert_counts()), of_tokens(computed(requests)));
    return tokens;
  }
};

TEST_F(EngineExperts, AreTheSameWhateverWayTheStepsTake) {
  const std::vector<Request> requests = some_requests();
  const auto wanted = counted(counting(), requests);
  EXPECT_GT(*std::max_element(wanted.begin(), wanted.end()), 0);
  EXPECT_EQ(counted(counting_ahead(0), requests), wanted) << "steps ahead";
  EXPECT_EQ(counted(counting_ahead(8), requests), wanted) << "and recorded";
  EngineOptions pieces = counting_ahead(8);
  pieces.max_num_batched_tokens = 8;
  EXPECT_EQ(counted(pieces, requests), wanted) << "and prompts in pieces";
  EngineOptions recorded = counting();
  recorded.recorded_sequences = 3;
  EXPECT_EQ(counted(recorded, requests), wanted) << "recorded, and none ahead";
}

// Of one step they are what it counted; kept alone, nothing is counted.
TEST_F(EngineExperts, ChosenOnesAreThoseOfTheLastStep) {
  Request request = some_requests().front();
  request.sampling.max_tokens = 1;
  const auto tokens = std::ssize(request.prompt);
  EngineOptions keeping = invariant();
  keeping.keep_chosen_experts = true;
  for (const EngineOptions& options : {counting(), keeping}) {
    const auto engine = engine_of(*device_, model_, options);
    EXPECT_EQ(engine->chosen_experts().value().tokens, 0);
    (void)run(*engine, {request});
    const ChosenExperts chosen = engine->chosen_experts().value();
    EXPECT_EQ(chosen.tokens, tokens);
    EXPECT_EQ(chosen.layers, std::ssize(model_.config.layers));
    ASSERT_EQ(std::ssize(chosen.ids), chosen.layers * tokens * chosen.top_k);
    EXPECT_EQ(engine->expert_counts() != nullptr, options.count_experts);
    if (!options.count_experts) continue;
    const std::vector<int64_t> counts = counted(*engine);
    const int64_t experts = model_.config.moe().experts;
    std::vector<int64_t> chosen_counts(counts.size());
    for (int64_t i = 0; i < std::ssize(chosen.ids); ++i)
      ++chosen_counts[static_cast<size_t>(i / (tokens * chosen.top_k) * experts +
                                          chosen.ids[static_cast<size_t>(i)])];
    EXPECT_EQ(chosen_counts, counts);
    for (int64_t layer = 0; layer < chosen.layers; ++layer)
      EXPECT_EQ(chosen.distinct(layer),
                std::count_if(counts.begin() + layer * experts, counts.begin() + (layer + 1) * experts,
                              [](int64_t n) { return n > 0; }));
  }
  const auto neither = engine_of(*device_, model_, invariant());
  EXPECT_TRUE(neither->chosen_experts().value().ids.empty());
}

TEST_F(EngineExperts, AreTheSameOfStepsThatScorePrompts) {
  std::vector<Request> requests = some_requests();
  EngineOptions options = counting();
  options.prefix_cache = false;  // which a prompt that is scored does not look into
  const auto wanted = counted(options, requests);
  for (Request& r : requests) r.sampling.prompt_logprobs = 2;
  EXPECT_EQ(counted(options, requests), wanted);
}

// The prompt in pieces and the answer token by token choose what one pass over all of it chooses.
TEST_F(EngineExperts, AreThoseOfOneForward) {
  Request r = some_requests()[2];
  EngineOptions pieces = counting_ahead(4);
  pieces.max_num_batched_tokens = 16;
  const auto engine = engine_of(*device_, model_, pieces);
  const Answer answer = run(*engine, {r}).at(0);
  std::vector<int32_t> all = r.prompt;
  all.insert(all.end(), answer.ids.begin(), answer.ids.end() - 1);
  const auto once = engine_of(*device_, model_, counting());
  ASSERT_TRUE(once->logits(all, {std::ssize(all) - 1}).ok());
  EXPECT_EQ(counted(*once), counted(*engine));
}

// A router without weights chooses by its bias alone: experts that are known, others in each layer.
TEST_F(EngineExperts, AreThoseThatTheRouterChose) {
  const MoeConfig& moe = model_.config.moe();
  std::vector<int64_t> wanted;
  const std::vector<Request> requests = some_requests();
  for (size_t layer = 0; layer < model_.config.layers.size(); ++layer) {
    const MoeWeights w = model_.weights.moe(static_cast<int64_t>(layer), moe);
    ASSERT_EQ(w.router.dtype, DType::kBF16);
    std::fill_n(w.router.as<BF16>(), moe.experts * moe.hidden, to_bf16(0));
    for (int64_t e = 0; e < moe.experts; ++e) {
      const bool chosen = (e + static_cast<int64_t>(layer)) % moe.experts < moe.top_k;
      w.router_bias.as<BF16>()[e] = to_bf16(chosen ? 1.f : -1.f);
      wanted.push_back(chosen ? computed(requests) : 0);
    }
  }
  EXPECT_EQ(counted(counting(), requests), wanted);
  EXPECT_EQ(counted(counting_ahead(8), requests), wanted);
}

TEST_F(EngineExperts, TokensThatTheCacheHasAreNotCounted) {
  const auto engine = engine_of(*device_, model_, counting());
  const Request r = some_requests()[2];
  (void)run(*engine, {r});
  (void)run(*engine, {r});
  const int64_t found = engine->scheduler().prefix_cache().hits;
  EXPECT_GT(found, 0);
  (void)counted(*engine);
  EXPECT_EQ(sums(*engine->expert_counts()), of_tokens(computed({r, r}) - found));
}

TEST_F(EngineExperts, ComeWithTheNextStepThatIsEnqueued) {
  Request r{.prompt = {3, 1, 4, 1, 5}};
  r.sampling.max_tokens = 9;
  for (const int64_t ahead : {0, 1}) {
    EngineOptions options = counting();
    options.steps_ahead = ahead;
    const auto engine = engine_of(*device_, model_, options);
    const auto step = [&] {
      EXPECT_TRUE(engine->step().ok());
      return sums(*engine->expert_counts());
    };
    ASSERT_TRUE(engine->add(r).ok());
    EXPECT_EQ(step(), of_tokens(0));  // enqueues the prompt and `ahead` steps more, and finishes the prompt
    ASSERT_TRUE(engine->ask_expert_counts().ok());
    EXPECT_EQ(sums(*engine->expert_counts()), of_tokens(0)) << "nobody waits for it";
    if (ahead > 0) {
      EXPECT_EQ(step(), of_tokens(0));
    }
    EXPECT_EQ(step(), of_tokens(5 + 1 + ahead));
    EXPECT_EQ(step(), of_tokens(5 + 1 + ahead)) << "nobody has asked again";
    ASSERT_TRUE(engine->ask_expert_counts().ok());
    for (int steps = 0; steps < 100 && !engine->idle(); ++steps) (void)step();
    EXPECT_EQ(step(), of_tokens(5 + 3 + 2 * ahead));
    (void)counted(*engine);
    EXPECT_EQ(sums(*engine->expert_counts()), of_tokens(5 + 8));
  }
}

// Layers without experts are not counted, and the others keep their numbers.
TEST_F(EngineExperts, OfTheLayersThatHaveExperts) {
  const auto chosen_with = [&](bool dense_first) {
    DecoderConfig config = small_decoder();
    config.layers.push_back(config.layers[1]);
    MoeConfig& mlp = config.layers[dense_first ? 0 : 3].mlp;
    mlp = dense_mlp(64, 96);
    const DecoderModel model(config);
    const auto engine = engine_of(*device_, model, counting());
    const auto requests = some_requests();
    (void)run(*engine, requests);
    EXPECT_TRUE(engine->ask_expert_counts().ok());
    const auto counts = engine->expert_counts();
    EXPECT_EQ(sums(*counts), of_tokens(computed(requests)));
    return counts->layers;
  };
  EXPECT_EQ(chosen_with(true), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(chosen_with(false), (std::vector<int32_t>{0, 1, 2}));
}

// An idle engine may have a step in flight: behind a stop token, for nobody.
TEST_F(EngineExperts, OfAnIdleEngineHaveWhatIsInFlight) {
  Request r{.prompt = {2, 7, 1, 8, 2}};
  r.sampling.temperature = 0, r.sampling.max_tokens = 9;
  const Answer full = run(*engine_of(*device_, model_, invariant()), {r}).at(0);
  r.sampling.stop_token_ids = {full.ids[3]};
  ASSERT_EQ(std::count(full.ids.begin(), full.ids.begin() + 3, full.ids[3]), 0) << "choose another prompt";
  const auto engine = engine_of(*device_, model_, counting_ahead(4));
  ASSERT_EQ(run(*engine, {r}).at(0).ids.size(), 4u);
  (void)counted(*engine);
  EXPECT_EQ(sums(*engine->expert_counts()), of_tokens(5 + 3 + 1));
}

// Nothing runs before a wait there, and the host touches none of its memory.
TEST(EngineFarExperts, OnADeviceWithMemoryOfItsOwn) {
  FarModel far;
  EngineOptions plain = counting();
  plain.steps_ahead = 0, plain.recorded_sequences = 0;
  const auto one = far.engine(plain), other = far.engine(counting());  // ahead, and recorded
  for (Engine* engine : {one.get(), other.get()}) {
    for (const Request& r : some_requests()) ASSERT_TRUE(engine->add(r).ok());
    while (!engine->idle()) {
      ASSERT_TRUE(engine->ask_expert_counts().ok());
      ASSERT_TRUE(engine->step().ok());
    }
    EXPECT_GT(sums(*engine->expert_counts()).front(), 0);
    ASSERT_TRUE(engine->ask_expert_counts().ok());
    EXPECT_EQ(sums(*engine->expert_counts()), std::vector<int64_t>(3, 3 * computed(some_requests())));
  }
  EXPECT_GT(other->recordings(), 0);
  EXPECT_EQ(other->expert_counts()->tokens, one->expert_counts()->tokens);
}

TEST_F(EngineExperts, OfExpertsApart) {
  const auto wanted = counted(counting(), some_requests());
  const auto apart = cpu::open_device({.threads = 1}).value();
  EngineOptions options = counting();
  options.experts.device = apart.get();
  EXPECT_EQ(counted(options, some_requests()), wanted);
}

TEST_F(EngineExperts, MemoryThatNobodyHasWrittenIsNotRead) {
  const auto wanted = counted(counting(), some_requests());
  PoisonedDevice poisoned(*device_);
  const auto engine = engine_of(poisoned, model_, counting_ahead(4));
  EXPECT_EQ(sums(*engine->expert_counts()), of_tokens(0));
  (void)run(*engine, some_requests());
  EXPECT_EQ(counted(*engine), wanted);
}

// What a fault takes back is computed again, and counts again; the counts still come.
TEST_F(EngineExperts, GoOnAfterAFault) {
  for (const int first : {0, 1, 5}) {
    FailingDevice failing(*device_, first, 2);
    const auto engine = engine_of(failing, model_, counting_ahead(4));
    for (const Request& r : some_requests()) ASSERT_TRUE(engine->add(r).ok());
    std::vector<int64_t> before = of_tokens(0);
    int steps = 0;
    while (!engine->idle()) {
      ASSERT_LT(++steps, 1000);
      ASSERT_TRUE(engine->ask_expert_counts().ok());
      (void)engine->step();
      const auto now = sums(*engine->expert_counts());
      EXPECT_GE(now, before);
      before = now;
    }
    EXPECT_GT(before, of_tokens(0)) << "counts came while it had work";
    (void)counted(*engine);
    const auto all = sums(*engine->expert_counts());
    EXPECT_GE(all, of_tokens(computed(some_requests()))) << "a fault at wait " << first;
    EXPECT_EQ(all, std::vector<int64_t>(all.size(), all.front()));
  }
}

TEST_F(EngineExperts, CountsNothingUnlessAsked) {
  const auto engine = engine_of(*device_, model_, invariant());
  (void)run(*engine, some_requests());
  EXPECT_TRUE(engine->ask_expert_counts().ok());
  EXPECT_EQ(engine->expert_counts(), nullptr);
  EXPECT_FALSE(engine->decoder().config().moe().capture);
}

}  // namespace
}  // namespace sluice::test
