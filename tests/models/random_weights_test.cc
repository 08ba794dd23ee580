// Random weights of a seed equal those of a checkpoint written with the seed, and generating a part needs
// only the part's memory.
#include "models/random_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>

#include "backends/cpu/device.h"
#include "base/random.h"
#include "engine/engine.h"
#include "harness/far_device.h"
#include "harness/model_bytes.h"
#include "harness/small_gpt_oss.h"

namespace sluice::test {
namespace {

std::vector<float> logits_of(Device& device, const LoadedModel& model) {
  const auto engine = Engine::make(device, model.config().decoder, model.weights(), {});
  return engine.value()->logits({9, 8, 7, 6, 5, 400, 300, 200, 100, 3}, {4, 7, 9}).value();
}

double cosine(std::span<const float> a, std::span<const float> b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) ab += a[i] * b[i], aa += a[i] * a[i], bb += b[i] * b[i];
  return ab / std::sqrt(aa * bb);
}

class RandomModel : public testing::Test {
 protected:
  RandomModel() : specs_(write_small_config(directory_.path())) {}
  std::unique_ptr<LoadedModel> load(Device& device, const LoadOptions& options) {
    auto loaded = LoadedModel::load(device, directory_.path(), options);
    EXPECT_TRUE(loaded.ok()) << loaded.status().message;
    return loaded.ok() ? std::move(loaded).value() : nullptr;
  }
  TemporaryDirectory directory_;
  std::vector<TensorSpec> specs_;
};

TEST_F(RandomModel, EqualsTheCheckpointOfItsSeed) {
  const auto device = cpu::open_device({.threads = 2}).value();
  // The directory has no weights to read.
  const auto made = load(*device, {.format = LoadFormat::kDummy, .seed = 5});
  write_small_weights(directory_.path(), specs_, 5, 8008);
  const auto read = load(*device, {});
  ASSERT_TRUE(made && read);
  EXPECT_EQ(made->weight_bytes(), read->weight_bytes());
  EXPECT_EQ(made->active_bytes(), read->active_bytes());
  EXPECT_EQ(logits_of(*device, *made), logits_of(*device, *read));
  size_t weights = 0;
  NamedWeights all = made->weights();
  all.for_each([&](int32_t layer, const std::string& name, const Tensor& one) {
    EXPECT_EQ(bytes_on(*device, one), bytes_on(*device, read->weights()(layer, name)))
        << layer << " " << name;
    ++weights;
  });
  EXPECT_EQ(weights, decoder_weights(made->config().decoder).size());
  const auto third = load(*device, {.format = LoadFormat::kDummy, .seed = 6});
  EXPECT_NE(logits_of(*device, *third), logits_of(*device, *made));
}

// Logits like a real model's: finite, of magnitude one, and different for each token.
TEST_F(RandomModel, GivesDifferentLogitsForEachToken) {
  const auto device = cpu::open_device({.threads = 2}).value();
  const auto model = load(*device, {.format = LoadFormat::kDummy});
  ASSERT_TRUE(model);
  const std::vector<float> logits = logits_of(*device, *model);
  const size_t vocab = logits.size() / 3;
  double squares = 0;
  for (const float v : logits) {
    ASSERT_TRUE(std::isfinite(v));
    squares += v * v;
  }
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(logits.size())), 1, 0.3);
  const std::span all(logits);
  EXPECT_LT(cosine(all.first(vocab), all.subspan(vocab, vocab)), 0.9);
  EXPECT_LT(cosine(all.first(vocab), all.last(vocab)), 0.9);
}

TEST_F(RandomModel, SpreadsTokensOverExperts) {
  const auto router = std::find_if(specs_.begin(), specs_.end(),
                                   [](const TensorSpec& s) { return s.weight == "router" && s.layer == 1; });
  ASSERT_NE(router, specs_.end());
  TensorSpec of_120b = *router;  // 128 experts, hidden size 2880
  of_120b.shape = {128, 2880};
  RandomWeights random({of_120b}, {}, 2);
  const auto made = random.make({&of_120b, 1});
  ASSERT_TRUE(made.ok()) << made.status().message;
  const auto* w = reinterpret_cast<const BF16*>(made.value()->find(of_120b.name).value()->data);
  Random x_of(4);
  std::vector<int> chosen(128);
  constexpr int kTokens = 400, kTop = 4;
  for (int t = 0; t < kTokens; ++t) {
    std::vector<double> x(2880);
    for (double& v : x) v = x_of.normal();
    std::vector<std::pair<double, size_t>> scores;
    for (size_t e = 0; e < 128; ++e) {
      double sum = 0;
      for (size_t k = 0; k < 2880; ++k) sum += x[k] * to_float(w[e * 2880 + k]);
      scores.emplace_back(-sum, e);
    }
    std::partial_sort(scores.begin(), scores.begin() + kTop, scores.end());
    for (int k = 0; k < kTop; ++k) ++chosen[scores[static_cast<size_t>(k)].second];
  }
  const auto [least, most] = std::minmax_element(chosen.begin(), chosen.end());
  EXPECT_GE(*least, 1);  // 12.5 on average
  EXPECT_LE(*most, 40);
}

// As many layers and experts as gpt-oss-120b, with narrow matrices.
constexpr const char* kDeepConfig = R"({
  "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": true, "hidden_act": "silu",
  "tie_word_embeddings": false, "vocab_size": 8192, "hidden_size": 256, "intermediate_size": 32,
  "num_hidden_layers": 36, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
  "num_local_experts": 128, "num_experts_per_tok": 4, "sliding_window": 16, "max_position_embeddings": 4096,
  "rms_norm_eps": 1e-05, "swiglu_limit": 7.0, "rope_theta": 150000, "eos_token_id": 999,
  "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024,
                   "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false},
  "quantization_config": {"quant_method": "mxfp4"}})";
constexpr int64_t kDeepLayers = 36, kDeepSequences = 32, kDeepPrompt = 128, kDeepSteps = 4;

// The number of distinct experts per layer that 32 sequences choose as they decode after random prompts,
// averaged over some steps.
std::vector<double> experts_read(Routing routing) {
  const auto device = cpu::open_device({.threads = 2}).value();
  const TemporaryDirectory directory;
  std::ofstream(directory.path() + "/config.json") << kDeepConfig;
  const auto model =
      LoadedModel::load(*device, directory.path(), {.format = LoadFormat::kDummy, .routing = routing});
  EXPECT_TRUE(model.ok()) << model.status().message;
  const auto engine = Engine::make(*device, model.value()->config().decoder, model.value()->weights(),
                                   {.max_model_len = 256,
                                    .max_num_seqs = kDeepSequences,
                                    .max_num_batched_tokens = kDeepSequences * kDeepPrompt,
                                    .keep_chosen_experts = true});
  EXPECT_TRUE(engine.ok()) << engine.status().message;
  Random random(3);
  for (int64_t s = 0; s < kDeepSequences; ++s) {
    Request r;
    for (int64_t t = 0; t < kDeepPrompt; ++t)
      r.prompt.push_back(static_cast<int32_t>(random.integer(0, 8191)));
    r.sampling.temperature = 0, r.sampling.max_tokens = kDeepSteps + 2;
    EXPECT_TRUE(engine.value()->add(r).ok());
  }
  EXPECT_EQ(std::ssize(engine.value()->step().value()), kDeepSequences);  // prefill
  std::vector<double> read(kDeepLayers);
  for (int64_t step = 0; step < kDeepSteps; ++step) {
    EXPECT_EQ(std::ssize(engine.value()->step().value()), kDeepSequences);
    const ChosenExperts chosen = engine.value()->chosen_experts().value();
    EXPECT_EQ(chosen.tokens, kDeepSequences);
    for (int64_t layer = 0; layer < kDeepLayers; ++layer)
      read[static_cast<size_t>(layer)] += static_cast<double>(chosen.distinct(layer)) / kDeepSteps;
  }
  return read;
}

double mean(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// With random weights a benchmark must read as many experts as with a trained model, whose routers choose
// nearly evenly. The two ratios below are 0.99 and 1.00. With embeddings of variance 1 and biases of 1/64
// they were 0.76 and 0.71; with only one of the two, 0.95 and 0.94.
TEST(RandomRouting, UniformRoutingIsEvenUpToTheLastLayer) {
  const double uniform = 128 * (1 - std::pow(1 - 4.0 / 128, kDeepSequences));  // 81.7
  const std::vector<double> read = experts_read(Routing::kUniform);
  EXPECT_NEAR(mean(read) / uniform, 1, 0.02);
  EXPECT_NEAR(mean(std::span(read).last(4)) / uniform, 1, 0.04);
}

TEST(RandomRouting, ZipfRoutingReadsTheExpectedExperts) {
  // The probability that a token chooses an expert if experts are sampled by these shares without
  // replacement: 1 - (1 - share)^draws.
  const std::vector<float> bias = zipf_bias(128, 4);
  double chances = 0, law = 0;
  for (const float b : bias) {
    const double chance = 0.5 * std::erfc(-b / std::sqrt(2.0));
    chances += chance;
    law += 1 - std::pow(1 - chance, kDeepSequences);
  }
  EXPECT_NEAR(chances, 4, 0.01);
  EXPECT_GT(bias.front(), bias.back() + 2);
  EXPECT_LT(law, 70);
  EXPECT_NEAR(mean(experts_read(Routing::kZipf)) / law, 1, 0.04);
}

// Only the routers' biases differ, and the ranking of experts differs between layers.
TEST_F(RandomModel, RoutingChangesOnlyTheBiasesOfRouters) {
  RandomWeights uniform(specs_, {}, 2), zipf(specs_, {.routing = Routing::kZipf, .top_k = 3}, 2);
  std::set<std::vector<std::byte>> biases;
  for (const TensorSpec& spec : specs_) {
    std::vector<std::byte> one(static_cast<size_t>(stored_bytes(spec.type, spec.shape).value())),
        other(one.size());
    uniform.fill(spec, 0, one), zipf.fill(spec, 0, other);
    EXPECT_EQ(one == other, spec.weight != "router_bias") << spec.name;
    if (spec.weight != "router_bias") continue;
    biases.insert(other);
    std::vector<std::byte> rest(other.size() - 8);  // a part of the tensor, as when files are written
    zipf.fill(spec, 8, rest);
    EXPECT_TRUE(std::equal(rest.begin(), rest.end(), other.begin() + 8)) << spec.name;
  }
  EXPECT_EQ(biases.size(), 3u);
}

TEST_F(RandomModel, HoldsOneCallAtATime) {
  RandomWeights random(specs_, {.seed = 1}, 2);
  std::vector<TensorSpec> large, small;
  int64_t all = 0;
  for (const TensorSpec& s : specs_) {
    if (s.weight == "lm_head") large.push_back(s);
    if (s.layer == 2 && s.of_mlp) small.push_back(s);
    all += stored_bytes(s.type, s.shape).value();
  }
  EXPECT_EQ(random.bytes(), all);
  const auto first = random.make(large);
  ASSERT_TRUE(first.ok()) << first.status().message;
  const std::byte* memory = first.value()->tensors()[0].data;
  const std::vector<std::byte> before(memory, memory + first.value()->bytes());
  const auto second = random.make(small);
  ASSERT_TRUE(second.ok()) << second.status().message;
  for (const CheckpointTensor& t : second.value()->tensors()) {
    EXPECT_GE(t.data, memory) << t.name;
    EXPECT_LE(t.data + t.bytes, memory + before.size()) << t.name;
  }
  const auto again = random.make(large);
  ASSERT_TRUE(again.ok()) << again.status().message;
  EXPECT_EQ(std::memcmp(again.value()->tensors()[0].data, before.data(), before.size()), 0);
  TensorSpec other = specs_[0];
  other.name = "other";
  EXPECT_NE(
      random.make({&other, 1})
          .status()
          .message.find(
              "random weights of seed 1: other: wanted a tensor of this checkpoint, found an unknown name"),
      std::string::npos);
}

// Dense weights, copied through the ring or directly, and experts packed on the device.
TEST_F(RandomModel, EqualsTheCheckpointOnADevice) {
  write_small_weights(directory_.path(), specs_, 0, 1 << 20);
  const auto checkpoint = Checkpoint::open(directory_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message;
  for (const LoadFormat format : {LoadFormat::kSafetensors, LoadFormat::kDummy}) {
    FarDevice far(WeightLayout::kRowMajor);
    LoadProgress last;
    const auto model = load(far, {.progress = [&](const LoadProgress& p) { last = p; }, .format = format});
    ASSERT_TRUE(model);
    EXPECT_EQ(last.bytes_done, last.bytes_total);
    EXPECT_EQ(last.bytes_total, checkpoint.value()->bytes());
    expect_dense_bytes(far, *model, *checkpoint.value());
    expect_expert_bytes(far, *model, *checkpoint.value());
  }
}

TEST_F(RandomModel, NeedsAConfig) {
  const auto device = cpu::open_device({.threads = 1}).value();
  const TemporaryDirectory empty;
  const Status status = LoadedModel::load(*device, empty.path(), {.format = LoadFormat::kDummy}).status();
  EXPECT_EQ(status.code, Code::kIo);
  EXPECT_NE(status.message.find("config.json: cannot be opened"), std::string::npos) << status.message;
}

}  // namespace
}  // namespace sluice::test
