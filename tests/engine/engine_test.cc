#include "engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "harness/devices.h"
#include "harness/engine_runs.h"
#include "harness/offering_device.h"

namespace sluice::test {
namespace {

TEST(Engine, TogetherOrAloneWholeOrInChunksGivesTheSameBits) {
  const auto device = cpu::open_device({.threads = 2}).value();
  const DecoderModel model(small_decoder());
  EngineOptions options = invariant();
  const auto together = run(*engine_of(*device, model, options), some_requests());
  ASSERT_EQ(together.size(), some_requests().size());
  int64_t i = 0;
  for (const Request& r : some_requests()) {
    const auto alone = run(*engine_of(*device, model, options), {r});
    EXPECT_EQ(together.at(i++), alone.at(0));
  }
  options.mixed_prefill_tokens = 3;  // prompts in chunks of at most 3 tokens while others decode
  EXPECT_EQ(run(*engine_of(*device, model, options), some_requests()), together);
  options.max_num_batched_tokens = 8;  // prompts in chunks of at most 8 tokens
  for (const int64_t mixed : {0, 3}) {
    options.mixed_prefill_tokens = mixed;
    EXPECT_EQ(run(*engine_of(*device, model, options), some_requests()), together);
  }
}

TEST(Engine, ShortOfPagesGivesTheSameAnswers) {
  const auto device = cpu::open_device({.threads = 2}).value();
  const DecoderModel model(small_decoder());
  EngineOptions options = invariant();
  const auto wanted = run(*engine_of(*device, model, options), some_requests());
  options.max_model_len = 64;
  // 64 positions of one sequence in both kinds of layers, and no more pages.
  options.kv_cache_bytes = bytes_of_pages(model.config, options.page_size, 32);
  const auto engine = engine_of(*device, model, options);
  EXPECT_EQ(engine->memory().pages, 32);
  EXPECT_EQ(run(*engine, some_requests()), wanted);
  EXPECT_GT(engine->scheduler().preemptions(), 0);
  EXPECT_EQ(engine->scheduler().free_pages(), 32);
}

TEST(Engine, EndsAtStopTokensAtMaxTokensAndAtTheContext) {
  const auto device = cpu::open_device({.threads = 1}).value();
  const DecoderModel model(small_decoder());
  Request r{.prompt = {3, 1, 4, 1, 5}};
  r.sampling.temperature = 0;
  EngineOptions options = roomy();
  options.max_model_len = 32;
  const Answer full = run(*engine_of(*device, model, options), {r}).at(0);
  EXPECT_EQ(full.finish, FinishReason::kLength);
  EXPECT_EQ(full.ids.size(), 27u);
  r.sampling.max_tokens = 6;
  const Answer six = run(*engine_of(*device, model, options), {r}).at(0);
  EXPECT_EQ(six.finish, FinishReason::kLength);
  EXPECT_TRUE(std::equal(six.ids.begin(), six.ids.end(), full.ids.begin()));
  ASSERT_EQ(six.ids.size(), 6u);
  r.sampling.max_tokens = 1;
  const Answer one = run(*engine_of(*device, model, options), {r}).at(0);
  EXPECT_EQ(one.finish, FinishReason::kLength);
  EXPECT_EQ(one.ids, std::vector<int32_t>{full.ids[0]});
  r.sampling.max_tokens = 6;
  r.sampling.stop_token_ids = {six.ids[3]};
  const Answer stopped = run(*engine_of(*device, model, options), {r}).at(0);
  EXPECT_EQ(stopped.finish, FinishReason::kStop);
  const auto first = std::find(six.ids.begin(), six.ids.end(), six.ids[3]);
  EXPECT_EQ(stopped.ids.size(), static_cast<size_t>(first - six.ids.begin()) + 1);
}

// Experts' kernels named for decode and for longer steps; a kernel gives the same answers whether it was
// named or chosen.
TEST(Engine, RunsTheNamedKernelsOfTheExperts) {
  const auto inner = cpu::open_device({.threads = 2}).value();
  OfferingDevice with_one(*inner);
  Device* const device = &with_one;
  const DecoderModel model(small_decoder());
  EngineOptions options = roomy();
  options.experts.backend = {.decode = "own", .prefill = "panels_f32", .decode_tokens = 8};
  const auto engine = engine_of(*device, model, options);
  const auto kernels = [&](int64_t tokens) {
    std::string out;
    for (const auto& [stage, kernel] : engine->decoder().kernels(tokens, 1))
      if (stage.find("experts") != std::string::npos) out += stage + "=" + kernel + " ";
    return out;
  };
  EXPECT_TRUE(kernels(8).starts_with("group+experts.up+experts.down+combine=cpu.expert_mlp.own"))
      << kernels(8);
  EXPECT_EQ(kernels(9), "experts.up=cpu.expert_gemm.panels_f32 experts.down=cpu.expert_gemm.panels_f32 ");
  for (const auto& [request, answer] : run(*engine, some_requests()))
    EXPECT_EQ(answer.finish, FinishReason::kLength) << request;
  options.experts.backend = {.decode = "dots"};
  EXPECT_NE(Engine::make(*device, model.config, model.weights, options).status().message.find("did you mean"),
            std::string::npos);
}

// Sampling from NaN logits is meaningless: every token would be token 0.
TEST(Engine, LogitsThatAreNoNumbersAreAnErrorOfTheirStep) {
  const auto device = cpu::open_device({.threads = 1}).value();
  const auto nan_at = [](const NamedWeights& weights, int64_t token) {
    weights(-1, "embedding").row<BF16>(token)[0] = to_bf16(std::numeric_limits<float>::quiet_NaN());
  };
  DecoderModel model(small_decoder());
  Request r{.prompt = {3, 1, 4}};
  r.sampling.temperature = 0;
  const Answer good = run(*engine_of(*device, model, roomy()), {r}).at(0);
  nan_at(model.weights, good.ids[0]);  // read by the second step
  const auto engine = engine_of(*device, model, roomy());
  ASSERT_TRUE(engine->add(r).ok());
  ASSERT_TRUE(engine->step().ok());
  const auto second = engine->step();
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code, Code::kDevice);
  EXPECT_EQ(second.status().message, "step 2: request 0: wanted finite logits, found nan for token 0");
}

// Checked before planning, whose time grows with the largest token count.
TEST(Engine, StepsHaveAtMostTheTokensThatTheRouterAccepts) {
  RouterGemm::Problem gate{.tokens = kStepTokensMax, .experts = 8, .hidden = 64};
  EXPECT_TRUE(RouterGemm::validate(gate).accepted());
  ++gate.tokens;
  EXPECT_FALSE(RouterGemm::validate(gate).accepted());
  const auto device = cpu::open_device({.threads = 1}).value();
  const DecoderModel model(small_decoder());
  EngineOptions options = roomy();
  options.max_num_batched_tokens = 10'000'000;
  const auto engine = Engine::make(*device, model.config, model.weights, options);
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.status().message, "max_num_batched_tokens: wanted 1 to 16384, found 10000000");
}

TEST(Engine, GreedySamplingTakesTheLargestLogit) {
  const auto device = cpu::open_device({.threads = 2}).value();
  const DecoderModel model(small_decoder());
  EngineOptions options = invariant();
  options.max_num_batched_tokens = 16;
  const auto engine = engine_of(*device, model, options);
  Request r{.prompt = {9, 8, 7, 6, 5, 4, 3, 2, 1}};
  r.sampling.temperature = 0, r.sampling.max_tokens = 20;
  const Answer answer = run(*engine, {r}).at(0);
  std::vector<int32_t> tokens = r.prompt;
  tokens.insert(tokens.end(), answer.ids.begin(), answer.ids.end());
  std::vector<int64_t> positions;
  for (size_t i = 0; i < answer.ids.size(); ++i)
    positions.push_back(static_cast<int64_t>(r.prompt.size() + i) - 1);
  const auto logits = engine->logits(tokens, positions);
  ASSERT_TRUE(logits.ok()) << logits.status().message;
  for (size_t i = 0; i < answer.ids.size(); ++i) {
    const auto row = logits.value().begin() + static_cast<std::ptrdiff_t>(i) * 101;
    EXPECT_EQ(std::max_element(row, row + 101) - row, answer.ids[i]) << "token " << i;
  }
}

// Token i of an answer follows ops/sample.h, given its logits, the request's seed and step i.
TEST(Engine, SampledTokensAreThoseOfTheContract) {
  const auto device = cpu::open_device({.threads = 2}).value();
  const DecoderModel model(small_decoder());
  EngineOptions options = invariant();
  const auto engine = engine_of(*device, model, options);
  Request r{.prompt = {9, 8, 7}};
  r.sampling = {.temperature = 1.2, .top_p = 0.9, .min_p = 0.01, .top_k = 40, .seed = 77, .max_tokens = 30};
  const Answer answer = run(*engine, {r}).at(0);
  std::vector<int32_t> tokens = r.prompt;
  tokens.insert(tokens.end(), answer.ids.begin(), answer.ids.end());
  std::set<int32_t> different(answer.ids.begin(), answer.ids.end());
  EXPECT_GT(different.size(), 5u);
  for (size_t i = 0; i < answer.ids.size(); ++i) {
    auto logits = engine->logits(tokens, {static_cast<int64_t>(r.prompt.size() + i) - 1}).value();
    float temperature = 1.2f, top_p = 0.9f, min_p = 0.01f, logprob = 0;
    int32_t top_k = 40, token = 0;
    int64_t seed = 77, step = static_cast<int64_t>(i);
    const Sample::Args args{.logits = make_tensor(logits.data(), DType::kF32, {1, 101}),
                            .temperature = make_tensor(&temperature, DType::kF32, {1}),
                            .top_k = make_tensor(&top_k, DType::kI32, {1}),
                            .top_p = make_tensor(&top_p, DType::kF32, {1}),
                            .min_p = make_tensor(&min_p, DType::kF32, {1}),
                            .seed = make_tensor(&seed, DType::kI64, {1}),
                            .step = make_tensor(&step, DType::kI64, {1}),
                            .token = make_tensor(&token, DType::kI32, {1}),
                            .logprob = make_tensor(&logprob, DType::kF32, {1})};
    for (const Expected& want : reference(Sample::Problem{.rows = 1, .vocab = 101}, args)) {
      if (want.slot != "token") continue;
      const double got = answer.ids[i];
      EXPECT_TRUE(want.accept ? want.accept(0, got) : got == want.value[0]) << "token " << i;
    }
  }
}

TEST(Engine, CancelReleasesPagesAndOthersContinue) {
  const auto device = cpu::open_device({.threads = 1}).value();
  const DecoderModel model(small_decoder());
  const auto engine = engine_of(*device, model, roomy());
  const int64_t all = engine->scheduler().free_pages();
  Request r{.prompt = {1, 2, 3}};
  r.sampling.max_tokens = 5;
  const int64_t first = engine->add(r).value();
  ASSERT_TRUE(engine->add(r).ok());
  ASSERT_TRUE(engine->step().ok());
  engine->cancel(first);
  engine->cancel(77);
  int64_t tokens = 1;
  while (!engine->idle()) tokens += static_cast<int64_t>(engine->step().value().size());
  EXPECT_EQ(tokens, 5);
  EXPECT_EQ(engine->scheduler().free_pages(), all);
}

TEST(Engine, RefusesWhatItCannotServe) {
  const auto device = cpu::open_device({.threads = 1}).value();
  const DecoderModel model(small_decoder());
  const auto engine = engine_of(*device, model, roomy());
  EXPECT_EQ(engine->add({}).status().message, "prompt: wanted at least one token, found none");
  EXPECT_EQ(engine->add({.prompt = std::vector<int32_t>(128, 1)}).status().message,
            "prompt: wanted fewer than 128 tokens (the context, max_model_len), found 128");
  EXPECT_EQ(engine->add({.prompt = {1, 101}}).status().message,
            "prompt: wanted tokens from 0 to 100 (the vocabulary), found 101");
  Request hot{.prompt = {1}};
  hot.sampling.temperature = -1;
  EXPECT_NE(engine->add(hot).status().message.find("temperature: wanted"), std::string::npos);
  EXPECT_TRUE(engine->idle());
  const auto made = [&](EngineOptions o) {
    return Engine::make(*device, model.config, model.weights, o).status().message;
  };
  EXPECT_NE(made({.max_num_seqs = 0}).find("max_num_seqs: wanted 1 to 16384, found 0"), std::string::npos);
  EXPECT_EQ(made({.mixed_prefill_tokens = -1}),
            "mixed_prefill_tokens: wanted 0 (no bound) or more, found -1");
  EXPECT_NE(made({.max_num_seqs = 8, .max_num_batched_tokens = 4}).find("wanted at least max_num_seqs = 8"),
            std::string::npos);
  EXPECT_NE(made({.max_model_len = 1 << 20, .max_num_seqs = 1000, .max_num_batched_tokens = 1000})
                .find("engine: wanted"),
            std::string::npos);
  EXPECT_NE(made({.kv_cache_bytes = 1000}).find("kv_cache_bytes: wanted at least"), std::string::npos);
}

}  // namespace
}  // namespace sluice::test
