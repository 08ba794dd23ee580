// Engines with a small random decoder, and requests to run on them.
#pragma once
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <vector>

#include "engine/engine.h"
#include "harness/random_weights.h"

namespace sluice::test {

constexpr int64_t kSmallVocab = 101;

// The config of a dense MLP layer.
inline MoeConfig dense_mlp(int64_t hidden, int64_t intermediate) {
  MoeConfig c{.hidden = hidden, .intermediate = intermediate, .experts = 1, .top_k = 1, .dense = true};
  c.expert_w = DType::kBF16;
  c.residual = true;
  return c;
}

// gpt-oss's arithmetic at a size that runs instantly.
inline DecoderConfig small_decoder() {
  DecoderConfig c;
  c.vocab = kSmallVocab, c.hidden = 64;
  AttentionConfig a{.hidden = 64, .heads = 4, .kv_heads = 2, .head_dim = 16};
  a.qkv_bias = a.o_bias = a.sinks = true;
  a.rotary = 16, a.scale = 0.25;
  AttentionConfig sliding = a;
  sliding.window = 5;
  MoeConfig moe = known_moe("gpt-oss-20b").value();
  moe.hidden = 64, moe.intermediate = 32, moe.experts = 8, moe.top_k = 3;
  moe.residual = true;
  c.layers = {{sliding, moe}, {a, moe}, {sliding, moe}};
  return c;
}

// Bytes of a cache with `pages` pages.
inline int64_t bytes_of_pages(const DecoderConfig& c, int64_t page_size, int64_t pages) {
  return pages * cache_layout(c.attention(), page_size).page_bytes_of_all();
}

struct DecoderModel {
  explicit DecoderModel(const DecoderConfig& c) : config(c) {
    Random random(11);
    add_decoder_weights(config, random, &store, &weights);
  }
  DecoderConfig config;
  TensorStore store;
  NamedWeights weights;
};

struct Answer {
  std::vector<int32_t> ids, ranks;
  std::vector<float> logprobs;
  std::vector<std::vector<TokenLogprob>> tops;
  std::vector<TokenScore> prompt;
  FinishReason finish = FinishReason::kNone;
  bool operator==(const Answer&) const = default;
  void push(const GeneratedToken& t) {
    ids.push_back(t.id), ranks.push_back(t.rank), logprobs.push_back(t.logprob),
        tops.push_back(t.top_logprobs);
    prompt.insert(prompt.end(), t.prompt.begin(), t.prompt.end());
    finish = t.finish;
  }
};

inline std::unique_ptr<Engine> engine_of(Device& device, const DecoderConfig& config,
                                         const NamedWeights& weights, const EngineOptions& options) {
  auto engine = Engine::make(device, config, weights, options);
  EXPECT_TRUE(engine.ok()) << engine.status().message;
  return engine.ok() ? std::move(engine).value() : nullptr;
}
inline std::unique_ptr<Engine> engine_of(Device& device, const DecoderModel& model,
                                         const EngineOptions& options) {
  return engine_of(device, model.config, model.weights, options);
}

// Runs steps until the engine is idle.
inline std::map<int64_t, Answer> run(Engine& engine, const std::vector<Request>& requests) {
  for (const Request& r : requests) EXPECT_TRUE(engine.add(r).ok());
  std::map<int64_t, Answer> out;
  for (int steps = 0; !engine.idle() && steps < 20000; ++steps) {
    const auto tokens = engine.step();
    EXPECT_TRUE(tokens.ok()) << tokens.status().message;
    if (!tokens.ok()) break;
    for (const GeneratedToken& t : tokens.value()) {
      Answer& a = out[t.request];
      EXPECT_EQ(a.finish, FinishReason::kNone) << "a token arrived after the end";
      a.push(t);
    }
  }
  EXPECT_TRUE(engine.idle());
  return out;
}

// Prompts of several lengths, some greedy and some sampled.
inline std::vector<Request> some_requests(int64_t vocab = kSmallVocab) {
  std::vector<Request> out;
  Random random(5);
  for (int64_t n : {1, 7, 40, 16, 23}) {
    Request r;
    for (int64_t i = 0; i < n; ++i) r.prompt.push_back(static_cast<int32_t>(random.integer(0, vocab - 1)));
    r.sampling.temperature = n % 2 ? 0.8 : 0;
    r.sampling.seed = static_cast<uint64_t>(n);
    r.sampling.max_tokens = 12 + n % 5;
    out.push_back(r);
  }
  return out;
}

// The same requests with penalties, biases and logprob lists; one of them with prompt logprobs, and one
// unchanged.
inline std::vector<Request> adjusted_requests(int64_t vocab = kSmallVocab) {
  std::vector<Request> out = some_requests(vocab);
  out[0].sampling.frequency_penalty = 0.7, out[0].sampling.logprobs = 4;
  out[1].sampling.logprobs = kTopLogprobsMax;
  out[2].sampling.repetition_penalty = 1.4, out[2].sampling.presence_penalty = -0.5;
  out[2].sampling.prompt_logprobs = 3;
  out[3].sampling.logit_bias = {{7, 4.f}, {static_cast<int32_t>(vocab) - 1, -100.f}};
  out[3].sampling.logprobs = 0;
  return out;
}

inline EngineOptions roomy() {
  return {.max_model_len = 128, .max_num_seqs = 8, .max_num_batched_tokens = 64, .page_size = 4};
}
// Options under which an answer's bits do not depend on concurrent requests.
inline EngineOptions invariant(EngineOptions options = roomy()) {
  options.policy.batch_invariant = true;
  return options;
}

}  // namespace sluice::test
