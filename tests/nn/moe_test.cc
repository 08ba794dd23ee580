#include "nn/moe/layer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/random.h"
#include "harness/cases.h"
#include "harness/devices.h"
#include "harness/offering_device.h"
#include "harness/random_weights.h"
#include "nn/moe/problems.h"

namespace sluice::test {
namespace {

// A small layer's weights, and everything one call needs.
struct SmallLayer {
  SmallLayer(Device& d, const MoeConfig& c, int64_t tokens, uint64_t seed) : device(d), config(c) {
    Random random(seed);
    add_moe_weights(c, random, &store, &weights);
    io.x = store.add(slot("x", Role::kIn, c.x, {tokens, c.hidden}));
    io.y = store.add(slot("y", Role::kOut, c.x, {tokens, c.hidden}));
    fill_floats(io.x, Fill::kNormal, random);
    if (c.residual) {
      io.residual = store.add(slot("residual", Role::kIn, c.x, {tokens, c.hidden}));
      fill_floats(io.residual, Fill::kNormal, random);
    }
    if (c.method == RoutingMethod::kHash) {
      io.token_ids = store.add(slot("token_ids", Role::kIn, DType::kI32, {tokens}));
      set_each(io.token_ids, [&](int64_t, int64_t) { return random.integer(-1, c.hash_vocab); });
    }
  }
  // Plans the layer and runs it once.
  Status run() {
    auto planned = Moe::plan(device, config, std::max<int64_t>(io.x.shape[0], 1));
    if (!planned.ok()) return planned.status();
    moe = std::move(planned).value();
    scratch.assign(moe->workspace_bytes() + 256, std::byte{0xFF});
    return moe->forward(io, weights, workspace(), device.stream());
  }
  Workspace workspace() {
    const auto raw = reinterpret_cast<uintptr_t>(scratch.data());
    return {reinterpret_cast<std::byte*>((raw + 255) / 256 * 256), moe->workspace_bytes()};
  }
  std::vector<std::byte> image() const {
    const auto* begin = io.y.as<std::byte>();
    return {begin, begin + bytes_of(io.y.dtype, elements_of(io.y))};
  }
  Device& device;
  MoeConfig config;
  MoeWeights weights;
  MoeIo io;
  TensorStore store;
  std::unique_ptr<Moe> moe;
  std::vector<std::byte> scratch;
};

constexpr const char* kModels[] = {
    "gpt-oss-20b",      "deepseek-v4-flash", "deepseek-v4-flash-hash", "deepseek-v3",   "qwen3-30b-a3b",
    "nemotron-3-nano",  "minimax-m2",        "llama-4-scout",          "minimax-m3",    "mistral-large-3",
    "nemotron-3-super", "glm-5.3-flash",     "mistral-large-4",        "step-3.7-flash"};

// A known model's arithmetic, at a size for which a reference is fast.
MoeConfig small(const char* model) {
  MoeConfig c = known_moe(model).value();
  c.hidden = 96, c.intermediate = 64;
  if (c.latent) c.latent = 40;
  c.experts = std::min<int64_t>(c.experts, 16);
  if (c.groups > 1) c.groups = 4, c.topk_groups = 2;
  c.top_k = std::min<int64_t>(c.top_k, 6);
  if (c.shared_intermediate) c.shared_intermediate = c.shared_as_slots ? 2 * c.intermediate : 32;
  if (c.hash_vocab) c.hash_vocab = 50;
  return c;
}

}  // namespace

TEST(Moe, EveryStageOfEveryModelIsWithinItsBounds) {
  for (const auto& device : every_level(2)) {
    for (const char* model : kModels) {
      for (const auto& [tokens, g] :
           {std::pair{1, DType::kBF16}, std::pair{5, DType::kBF16}, std::pair{5, DType::kF32}}) {
        MoeConfig config = small(model);
        config.g = g;
        SmallLayer layer(*device, config, tokens, 3);
        ASSERT_TRUE(layer.run().ok()) << model;
        const auto checks = layer.moe->check(layer.io, layer.weights, layer.workspace(), device->stream());
        ASSERT_TRUE(checks.ok()) << model << ": " << checks.status().message;
        EXPECT_GE(checks.value().size(), 5u);
        for (const StageCheck& c : checks.value())
          EXPECT_LE(c.worst, 1) << model << " " << c.stage << " " << c.kernel << ": " << c.detail;
      }
    }
  }
}

// Both types of the experts' outputs: in bf16 the values between down and combine are half as large, and the
// sums differ from f32.
TEST(Moe, AnswersHaveTheTypeOfTheConfig) {
  const auto device = cpu::open_device({.threads = 1}).value();
  MoeConfig config = small("gpt-oss-20b");
  EXPECT_EQ(config.g, DType::kBF16);
  SmallLayer rounded(*device, config, 33, 3);
  config.g = DType::kF32;
  SmallLayer exact(*device, config, 33, 3);
  ASSERT_TRUE(rounded.run().ok());
  ASSERT_TRUE(exact.run().ok());
  EXPECT_NE(rounded.image(), exact.image());
  const int64_t answers = 33 * config.top_k * config.hidden;
  EXPECT_EQ(exact.moe->workspace_bytes() - rounded.moe->workspace_bytes(),
            static_cast<size_t>(2 * answers) / 256 * 256);
  config.g = DType::kI32;
  EXPECT_NE(Moe::plan(*device, config, 4).status().message.find("y in f32 or bf16; y=i32"),
            std::string::npos);
}

TEST(Moe, ACallLeavesItsChoiceBehind) {
  const auto device = cpu::open_device({.threads = 2}).value();
  SmallLayer layer(*device, small("deepseek-v3"), 5, 3);
  ASSERT_TRUE(layer.run().ok());
  const MoeChoice choice = layer.moe->choice(5, layer.workspace());
  RouteTopk::Args args;
  args.logits = choice.logits, args.bias = layer.weights.correction_bias;
  args.ids = choice.ids, args.weights = choice.weights;
  const RouteTopk::Problem p = RouteTopk::at_tokens(route_problem(layer.config), 5);
  for (const Expected& want : reference(p, args)) {
    EXPECT_TRUE(want.slot == "ids" || want.slot == "weights") << want.slot;
    const Comparison c = compare(want, want.slot == "ids" ? choice.ids : choice.weights);
    EXPECT_EQ(c.wrong, 0) << c.text;
  }
}

TEST(Moe, SharedSlotsOfWeightedInputsAreWithinTheirBounds) {
  const auto device = cpu::open_device({.threads = 2}).value();
  MoeConfig config = small("llama-4-scout");
  config.shared_intermediate = 2 * config.intermediate, config.shared_as_slots = true;
  SmallLayer layer(*device, config, 5, 3);
  ASSERT_TRUE(layer.run().ok());
  const auto checks = layer.moe->check(layer.io, layer.weights, layer.workspace(), device->stream());
  ASSERT_TRUE(checks.ok()) << checks.status().message;
  EXPECT_EQ(checks.value().size(), 6u);
  for (const StageCheck& c : checks.value())
    EXPECT_LE(c.worst, 1) << c.stage << " " << c.kernel << ": " << c.detail;
}

TEST(Moe, CheckNoticesAWrongWeight) {
  const auto device = cpu::open_device({.threads = 1}).value();
  SmallLayer layer(*device, small("gpt-oss-20b"), 2, 3);
  ASSERT_TRUE(layer.run().ok());
  const std::vector<std::byte> before = layer.image();
  // A NaN scale in every expert: any chosen expert gives NaN in one feature, and so does the reference.
  for (int64_t e = 0; e < layer.config.experts; ++e)
    layer.weights.experts.down_scale.row<uint8_t>(e)[0] = 255;
  ASSERT_TRUE(layer.run().ok());
  EXPECT_NE(layer.image(), before);
  EXPECT_TRUE(std::isnan(to_float(layer.io.y.as<BF16>()[0])));
  EXPECT_FALSE(std::isnan(to_float(layer.io.y.as<BF16>()[1])));
}

TEST(Moe, SameBitsRecordedAndOnAnyNumberOfThreads) {
  std::vector<std::vector<std::byte>> images;
  for (int threads : {1, 3}) {
    const auto device = cpu::open_device({.threads = threads}).value();
    SmallLayer layer(*device, small("deepseek-v3"), 7, 5);
    ASSERT_TRUE(layer.run().ok());
    images.push_back(layer.image());
    const Stream stream = device->stream();
    const auto recording = device->record(
        stream, [&] { return layer.moe->forward(layer.io, layer.weights, layer.workspace(), stream); });
    ASSERT_TRUE(recording.ok());
    std::memset(layer.io.y.data, 0xFF, images[0].size());
    ASSERT_TRUE(device->replay(*recording.value(), stream).ok());
    images.push_back(layer.image());
  }
  for (const auto& image : images) EXPECT_EQ(image, images[0]);
}

// Each expert on its own rank: the sum over ranks is the layer, within the rounding of that sum.
TEST(Moe, ExpertParallelRanksAddUpToOne) {
  const auto device = cpu::open_device({.threads = 2}).value();
  MoeConfig config = small("gpt-oss-20b");
  config.x = config.g = DType::kF32;
  SmallLayer whole(*device, config, 6, 8);
  ASSERT_TRUE(whole.run().ok());
  const int64_t n = elements_of(whole.io.y);
  std::vector<double> sum(static_cast<size_t>(n)), magnitude(static_cast<size_t>(n));
  for (int64_t rank = 0; rank < config.experts; ++rank) {
    MoeConfig slice = config;
    slice.scope = ExpertScope::kRange, slice.expert_begin = rank, slice.expert_count = 1;
    SmallLayer part(*device, slice, 6, 8);
    part.io.x = whole.io.x;
    part.weights = whole.weights;
    for (Tensor ExpertWeights::*t :
         {&ExpertWeights::up, &ExpertWeights::up_scale, &ExpertWeights::up_bias, &ExpertWeights::down,
          &ExpertWeights::down_scale, &ExpertWeights::down_bias}) {
      Tensor& tensor = part.weights.experts.*t;
      tensor.data = tensor.as<std::byte>() + rank * bytes_of(tensor.dtype, tensor.stride[0]);
      tensor.shape[0] = 1;
    }
    ASSERT_TRUE(part.run().ok());
    for (int64_t i = 0; i < n; ++i) {
      sum[static_cast<size_t>(i)] += part.io.y.as<float>()[i];
      magnitude[static_cast<size_t>(i)] += std::abs(part.io.y.as<float>()[i]);
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<size_t>(i);
    ASSERT_GT(magnitude[at], 0);
    EXPECT_NEAR(whole.io.y.as<float>()[i], sum[at],
                static_cast<double>(config.top_k + 6) * 0x1p-24 * magnitude[at]);
  }
}

TEST(Moe, SharedExpertResidualAndNoTokens) {
  const auto device = cpu::open_device({.threads = 1}).value();
  MoeConfig config = small("deepseek-v4-flash");
  config.residual = true;
  SmallLayer layer(*device, config, 3, 2);
  ASSERT_TRUE(layer.run().ok());
  const auto checks = layer.moe->check(layer.io, layer.weights, layer.workspace(), device->stream());
  ASSERT_TRUE(checks.ok());
  EXPECT_EQ(checks.value().size(), 9u);
  EXPECT_EQ(checks.value().back().stage, "combine");
  SmallLayer empty(*device, config, 0, 2);
  EXPECT_TRUE(empty.run().ok());
}

// The same kernels run on all paths, so the layer must have the same bits. This shows that the fused
// path skips nothing between routing and experts, adds nothing twice, and reads nothing that only
// another path writes.
template <class OfExperts>
void expect_the_bits_of_the_parts() {
  const auto inner = cpu::open_device({.threads = 2, .features_allowed = 0}).value();
  Offering<OfExperts> device(*inner);
  const auto variants = [](MoeConfig c) {
    std::vector<MoeConfig> out{c};
    c.residual = true;
    out.push_back(c);
    if (c.method != RoutingMethod::kHash) {  // one rank: most ids belong to other ranks
      c.scope = ExpertScope::kRange, c.expert_begin = 2, c.expert_count = 5;
      out.push_back(c);
    }
    c.weight_on_input = true;
    out.push_back(c);
    return out;
  };
  for (const char* model : kModels) {
    for (const MoeConfig& config : variants(small(model))) {
      for (const int64_t tokens : {0, 1, 5, 6}) {
        SmallLayer parts(*inner, config, tokens, 4), one(device, config, tokens, 4);
        ASSERT_TRUE(parts.run().ok()) << model;
        const Status status = one.run();
        ASSERT_TRUE(status.ok()) << model << ": " << status.message;
        const bool own = tokens <= Offering<OfExperts>::kOwnTokens && tokens > 0;
        const auto runs = [&](const Moe& moe) {
          int64_t count = 0;
          for (const PieceProblem& p : moe.step().problems(tokens))
            count += p.problem->op() == OfExperts::kName && p.experts;
          return count;
        };
        EXPECT_EQ(runs(*parts.moe), 0);
        EXPECT_TRUE(tokens == 0 || runs(*one.moe) == own) << model << ", " << tokens << " tokens";
        EXPECT_EQ(one.image(), parts.image()) << model << ", " << tokens << " tokens";
        const auto checks = one.moe->check(one.io, one.weights, one.workspace(), device.stream());
        ASSERT_TRUE(checks.ok()) << model << ": " << checks.status().message;
        const auto kernels = one.moe->kernels(tokens);
        ASSERT_EQ(checks.value().size(), kernels.size());
        for (size_t i = 0; i < kernels.size(); ++i) {
          const StageCheck& c = checks.value()[i];
          EXPECT_EQ(c.stage, kernels[i].first);
          EXPECT_LE(c.worst, 1) << model << " " << c.stage << " " << c.kernel << ": " << c.detail;
        }
        const auto of_experts = [](const StageCheck& c) {
          return c.stage.find("experts.up+") != std::string::npos;
        };
        EXPECT_TRUE(!own || std::any_of(checks.value().begin(), checks.value().end(), of_experts)) << model;
      }
    }
  }
}

TEST(Moe, FusedExpertsHaveTheBitsOfTheParts) { expect_the_bits_of_the_parts<ExpertMlp>(); }
TEST(Moe, GroupedExpertsHaveTheBitsOfTheParts) { expect_the_bits_of_the_parts<GroupedMlp>(); }

// A config as text: every field is read back, and a call's slots follow the config.
TEST(Moe, AConfigIsItsFields) {
  for (const char* model : kModels) {
    const MoeConfig known = known_moe(model).value();
    MoeConfig read;
    ASSERT_TRUE(parse_fields(fields_text(known), &read).ok());
    EXPECT_EQ(read, known) << model;
    EXPECT_EQ(fields_text(read), fields_text(known));
  }
  MoeConfig config;
  EXPECT_NE(set_field(config, "expert", "3").message.find("experts"), std::string::npos);
  ASSERT_TRUE(parse_fields("hidden=64 method=hash hash_vocab=9 residual=1", &config).ok());
  MoeIo io;
  std::vector<std::string> used;
  for (const auto& [spec, tensor] : io_slots(config, 5, &io)) {
    if (!spec.used) continue;
    EXPECT_EQ(spec.shape[0], 5);
    used.emplace_back(spec.name);
  }
  EXPECT_EQ(used, (std::vector<std::string>{"x", "residual", "token_ids", "y"}));
}

// The router and the shared expert read x, and the experts read its latent projection. The sum of the
// experts' outputs is projected back before other terms are added.
TEST(Moe, ALatentLayerIsItsProjectionsAndItsExperts) {
  const auto device = cpu::open_device({.threads = 2}).value();
  MoeConfig config = small("nemotron-3-super");
  config.residual = true;
  SmallLayer layer(*device, config, 5, 3);
  ASSERT_TRUE(layer.run().ok());
  std::vector<std::string> stages;
  const auto checks = layer.moe->check(layer.io, layer.weights, layer.workspace(), device->stream());
  ASSERT_TRUE(checks.ok()) << checks.status().message;
  for (const StageCheck& c : checks.value()) {
    EXPECT_LE(c.worst, 1) << c.stage << " " << c.kernel << ": " << c.detail;
    stages.push_back(c.stage);
  }
  EXPECT_EQ(stages, (std::vector<std::string>{"latent.group", "latent.in", "shared.up", "shared.down",
                                              "router", "route", "group", "experts.up", "experts.down",
                                              "combine", "latent.out", "latent.add"}));
  config.shared_intermediate = config.intermediate, config.shared_as_slots = true;
  EXPECT_NE(
      Moe::plan(*device, config, 4).status().message.find("shared_as_slots: wanted 0 with a latent width"),
      std::string::npos);
  config.shared_as_slots = false, config.latent = -1;
  EXPECT_EQ(Moe::plan(*device, config, 4).status().message, "latent: wanted 0 to 65536, found -1");
}

TEST(Moe, RefusesByName) {
  const auto device = cpu::open_device({.threads = 1}).value();
  for (const int64_t tokens : {INT64_MAX, int64_t{1'000'000'000'000}})
    EXPECT_EQ(Moe::plan(*device, {}, tokens).status().message,
              "moe: tokens_max: wanted 1 to 16777216, found " + std::to_string(tokens));
  EXPECT_NE(Moe::plan(*device, {}, 16385).status().message.find("needs tokens from 0 to 16384; tokens=16385"),
            std::string::npos);
  EXPECT_NE(Moe::plan(*device, {}, 0).status().message.find("tokens_max: wanted 1 to 16777216, found 0"),
            std::string::npos);
  MoeConfig config = small("gpt-oss-20b");
  config.top_k = 99;
  EXPECT_NE(Moe::plan(*device, config, 4).status().message.find("top_k: wanted 1 to "), std::string::npos);
  SmallLayer layer(*device, small("gpt-oss-20b"), 2, 1);
  ASSERT_TRUE(layer.run().ok());
  MoeWeights wrong = layer.weights;
  wrong.experts.up_scale.shape[0] = 3;
  const Status status = layer.moe->forward(layer.io, wrong, layer.workspace(), device->stream());
  EXPECT_EQ(status.code, Code::kInvalidArgument);
  EXPECT_NE(status.message.find("experts.up: expert_gemm: w_scale"), std::string::npos) << status.message;
  MoeIo narrow = layer.io;
  narrow.y.shape[1] = 95;
  EXPECT_EQ(layer.moe->forward(narrow, layer.weights, layer.workspace(), device->stream()).message,
            "moe: y: shape: wanted bf16[2, 96], found bf16[2, 95] strides [96, 1]");
  narrow = layer.io, narrow.token_ids = layer.io.y;
  EXPECT_EQ(layer.moe->forward(narrow, layer.weights, layer.workspace(), device->stream()).message,
            "moe: token_ids: given as bf16[2, 96], but the plan was made without it");
  const Status small_workspace = layer.moe->forward(layer.io, layer.weights, {}, device->stream());
  EXPECT_NE(small_workspace.message.find("workspace: wanted"), std::string::npos);
  EXPECT_NE(known_moe("gpt-oss-20").status().message.find("did you mean 'gpt-oss-20b'?"), std::string::npos);
}

}  // namespace sluice::test
