// Optional inputs and outputs of MoE layers: precomputed ids, captured ids, padding, adapters, per-expert
// activations, kernels by name. One suite serves all devices; a fixture provides `Device& target()`.
#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "dispatch/plan.h"
#include "harness/random_weights.h"
#include "nn/owned_tensor.h"

namespace sluice::test {

// A small layer with random weights on a device, and memory for calls of `tokens` tokens. Equal seeds give
// equal weights and inputs, whatever else the config requests.
class FeatureLayer {
 public:
  FeatureLayer(Device& device, const MoeConfig& config, int64_t tokens, const MoeBackend& backend = {})
      : device_(device) {
    MoeConfig c = config;
    c.layout = layout_for(device.info().backend);
    auto planned = Moe::plan(device, c, std::max<int64_t>(tokens, 1), {}, backend);
    EXPECT_TRUE(planned.ok()) << planned.status().message;
    moe_ = std::move(planned).value();
    MoeWeights host;
    for (const auto& [spec, tensor] : weight_slots(c, &host)) {
      // Each tensor has its own generator, so that an additional tensor changes no other tensor.
      uint64_t seed = 11;
      for (const char letter : spec.name) seed = seed * 31 + static_cast<uint64_t>(letter);
      Random random(seed);
      if (spec.used) fill_weight(c, spec, *tensor = store_.add(spec), random);
    }
    Random of_scaled(7);
    fill_scaled_weights(c, of_scaled, &host);
    const auto from = weight_slots(c, &host), to = weight_slots(c, &weights_);
    for (size_t i = 0; i < to.size(); ++i)
      if (to[i].first.used) *to[i].second = on_device(*from[i].second, to[i].first);
    Random random(5);
    for (const auto& [spec, tensor] : io_slots(c, tokens, &io_)) {
      if (!spec.used) continue;
      const Tensor t = store_.add(spec);
      if (t.dtype == DType::kBF16) fill_floats(t, Fill::kNormal, random);
      if (t.dtype != DType::kBF16) set_each(t, [](int64_t, int64_t) { return 0; });
      *tensor = on_device(t, spec);
    }
    scratch_ =
        OwnedTensor::make(
            device, slot("", Role::kIn, DType::kU8, {static_cast<int64_t>(moe_->workspace_bytes())}), "test")
            .value();
  }
  const Moe& moe() const { return *moe_; }
  const MoeConfig& config() const { return moe_->config(); }
  MoeIo& io() { return io_; }
  MoeWeights& weights() { return weights_; }
  Workspace workspace() const { return {scratch_.view().as<std::byte>(), moe_->workspace_bytes()}; }
  Tensor logits() const { return moe_->choice(io_.x.shape[0], workspace()).logits; }

  template <class T>
  void set(const Tensor& to, const std::vector<T>& values) {
    EXPECT_EQ(static_cast<int64_t>(values.size()), elements_of(to));
    EXPECT_TRUE(device_.copy(to.data, values.data(), values.size() * sizeof(T), device_.stream()).ok());
    EXPECT_TRUE(device_.wait(device_.stream()).ok());
  }
  template <class T>
  std::vector<T> get(const Tensor& t) const {
    std::vector<T> out(static_cast<size_t>(elements_of(t)));
    EXPECT_TRUE(device_.copy(out.data(), t.data, out.size() * sizeof(T), device_.stream()).ok());
    EXPECT_TRUE(device_.wait(device_.stream()).ok());
    return out;
  }
  Status status() const { return moe_->forward(io_, weights_, workspace(), device_.stream()); }
  std::vector<uint16_t> run() {
    const Status done = status();
    EXPECT_TRUE(done.ok()) << done.message;
    return get<uint16_t>(io_.y);
  }
  // Compares every stage with its reference.
  void check() {
    const auto checks = moe_->check(io_, weights_, workspace(), device_.stream());
    ASSERT_TRUE(checks.ok()) << checks.status().message;
    const auto kernels = moe_->kernels(io_.x.shape[0]);
    ASSERT_EQ(checks.value().size(), kernels.size());
    for (size_t i = 0; i < kernels.size(); ++i) {
      const StageCheck& c = checks.value()[i];
      EXPECT_EQ(c.stage, kernels[i].first);
      EXPECT_LE(c.worst, 1) << c.stage << " " << c.kernel << ": " << c.detail;
    }
  }

 private:
  Tensor on_device(const Tensor& host, const SlotSpec& spec) {
    owned_.push_back(OwnedTensor::make(device_, spec, "test").value());
    const Tensor out = owned_.back().view();
    const auto bytes = static_cast<size_t>(bytes_of(host.dtype, elements_of(host)));
    EXPECT_TRUE(device_.copy(out.data, host.data, bytes, device_.stream()).ok());
    EXPECT_TRUE(device_.wait(device_.stream()).ok());
    return out;
  }

  Device& device_;
  std::unique_ptr<Moe> moe_;
  TensorStore store_;
  MoeWeights weights_;
  MoeIo io_;
  std::vector<OwnedTensor> owned_;
  OwnedTensor scratch_;
};

inline MoeConfig feature_config(const char* model) {
  MoeConfig c = known_moe(model).value();
  c.hidden = 192, c.intermediate = 128, c.experts = 16, c.top_k = 4;
  if (c.groups > 1) c.groups = 4, c.topk_groups = 2;
  if (c.shared_intermediate) c.shared_intermediate = c.shared_as_slots ? c.intermediate : 64;
  return c;
}

constexpr const char* kFeatureModels[] = {"gpt-oss-120b", "deepseek-v4-flash", "deepseek-v3"};
constexpr int64_t kFeatureTokens[] = {1, 5, 70};

// Whether two layers run the same kernels in the stages whose names begin with `stages`; only then must the
// bits agree.
inline bool same_kernels(const FeatureLayer& a, const FeatureLayer& b, int64_t tokens,
                         std::string_view stages) {
  const auto of = [&](const FeatureLayer& layer) {
    std::vector<std::string> out;
    for (const auto& [name, kernel] : layer.moe().kernels(tokens))
      if (name.starts_with(stages)) out.push_back(kernel);
    return out;
  };
  return of(a) == of(b);
}

template <class Fixture>
class MoeFeaturesOn : public Fixture {};
TYPED_TEST_SUITE_P(MoeFeaturesOn);

// Precomputed ids and weights, equal to the router's, give the same bits as the router.
TYPED_TEST_P(MoeFeaturesOn, GivenIdsAndWeightsHaveTheBitsOfChosenOnes) {
  for (const char* model : kFeatureModels) {
    for (const int64_t tokens : kFeatureTokens) {
      MoeConfig config = feature_config(model);
      config.scale = 1, config.capture = true;
      FeatureLayer chosen(this->target(), config, tokens);
      const auto y = chosen.run();
      const auto ids = chosen.template get<int32_t>(chosen.io().captured);
      const MoeChoice choice = chosen.moe().choice(tokens, chosen.workspace());
      const auto all = chosen.template get<float>(choice.weights);
      const int64_t slots = choice.weights.shape[1];
      std::vector<float> weights;
      for (int64_t t = 0; t < tokens; ++t)
        for (int64_t k = 0; k < config.top_k; ++k) weights.push_back(all[static_cast<size_t>(t * slots + k)]);
      config.input = RoutingInput::kPrecomputed;
      FeatureLayer given(this->target(), config, tokens);
      given.set(given.io().ids_in, ids), given.set(given.io().weights_in, weights);
      const auto given_y = given.run();
      if (same_kernels(given, chosen, tokens, "experts")) {
        EXPECT_EQ(given_y, y) << model << ", " << tokens << " tokens";
      }
      EXPECT_EQ(given.template get<int32_t>(given.io().captured), ids);
      EXPECT_NE(given.moe().kernels(tokens).front().first, "router");
      given.check();

      config.input = RoutingInput::kPacked;
      FeatureLayer packed(this->target(), config, tokens);
      std::vector<int32_t> words, one = ids;
      for (size_t i = 0; i < ids.size(); ++i) words.push_back(ids[i] << 16 | to_bf16(weights[i]).bits);
      for (float& w : weights) w = to_float(to_bf16(w));
      packed.set(packed.io().packed_in, words), given.set(given.io().weights_in, weights);
      const auto packed_y = packed.run(), rounded_y = given.run();
      if (same_kernels(packed, given, tokens, "experts")) {
        EXPECT_EQ(packed_y, rounded_y) << model << ", " << tokens << " tokens";
      }
      packed.check();
      // An empty slot.
      one[0] = -1;
      given.set(given.io().ids_in, one);
      EXPECT_NE(given.run(), rounded_y);
      EXPECT_EQ(given.template get<int32_t>(given.io().captured)[0], -1);
      given.check();
    }
  }
}

// Experts and shared experts, as slots and apart, in every format.
TYPED_TEST_P(MoeFeaturesOn, WeightsOfEveryFormat) {
  for (const WeightFormat& f : kScaledFormats)
    for (const bool as_slots : {false, true})
      for (const int64_t tokens : {int64_t{1}, int64_t{40}}) {
        MoeConfig config = feature_config("deepseek-v3");
        config.expert_w = config.shared_w = f.w, config.expert_scales = config.shared_scales = f.scales;
        config.shared_as_slots = as_slots;
        FeatureLayer layer(this->target(), config, tokens);
        const auto y = layer.run();
        layer.check();
        EXPECT_EQ(layer.run(), y) << text(f);
      }
}

// A rank computes only its own experts, but captured ids are those of the whole model.
TYPED_TEST_P(MoeFeaturesOn, CapturedIdsAreThoseOfTheWholeModel) {
  for (const int64_t tokens : kFeatureTokens) {
    MoeConfig config = feature_config("gpt-oss-120b");
    FeatureLayer plain(this->target(), config, tokens);
    const auto y = plain.run();
    const auto ids = plain.template get<int32_t>(plain.moe().choice(tokens, plain.workspace()).ids);
    config.capture = true;
    FeatureLayer whole(this->target(), config, tokens);
    EXPECT_EQ(whole.run(), y);
    EXPECT_EQ(whole.template get<int32_t>(whole.io().captured), ids);
    EXPECT_EQ(whole.moe().kernels(tokens), plain.moe().kernels(tokens))
        << "capturing must not change the kernels";
    EXPECT_FALSE(whole.moe().choice(tokens, whole.workspace()).ids.present());
    whole.check();
    // Captures ids to an address inside a buffer.
    const auto memory = OwnedTensor::make(
        this->target(), slot("", Role::kOut, DType::kI32, {tokens * config.top_k + 1}), "test");
    whole.io().captured.data = memory.value().view().template as<int32_t>() + 1;
    whole.set(whole.io().captured, std::vector<int32_t>(ids.size(), -7));
    EXPECT_EQ(whole.run(), y);
    EXPECT_EQ(whole.template get<int32_t>(whole.io().captured), ids);
    whole.set(whole.io().captured, std::vector<int32_t>(ids.size(), -7));
    whole.check();
    EXPECT_EQ(whole.template get<int32_t>(whole.io().captured), ids);
    config.scope = ExpertScope::kRange, config.expert_begin = 4, config.expert_count = 5;
    FeatureLayer rank(this->target(), config, tokens);
    (void)rank.run();
    const auto chosen = rank.template get<int32_t>(rank.io().captured);
    if (same_kernels(rank, whole, tokens, "rout")) {
      EXPECT_EQ(chosen, ids);
    }
    const auto local = rank.template get<int32_t>(rank.moe().choice(tokens, rank.workspace()).ids);
    for (size_t i = 0; i < ids.size(); ++i)
      EXPECT_EQ(local[i], chosen[i] >= 4 && chosen[i] < 9 ? chosen[i] - 4 : -1) << i;
    rank.check();
  }
}

TYPED_TEST_P(MoeFeaturesOn, RowsOfPaddingHaveNoExpert) {
  for (const char* model : {"gpt-oss-120b", "deepseek-v3"}) {
    for (const int64_t tokens : kFeatureTokens) {
      MoeConfig config = feature_config(model);
      config.residual = true, config.padded = true, config.capture = true;
      FeatureLayer layer(this->target(), config, tokens);
      const int64_t valid = tokens / 2;
      layer.set(layer.io().tokens_valid, std::vector<int32_t>{static_cast<int32_t>(valid)});
      const auto y = layer.run();
      const auto residual = layer.template get<uint16_t>(layer.io().residual);
      const auto captured = layer.template get<int32_t>(layer.io().captured);
      for (int64_t t = 0; t < tokens; ++t) {
        const auto row = [&](const std::vector<uint16_t>& v) {
          return std::vector<uint16_t>(v.begin() + t * config.hidden, v.begin() + (t + 1) * config.hidden);
        };
        EXPECT_EQ(row(y) == row(residual), t >= valid) << model << ", token " << t << " of " << tokens;
        EXPECT_EQ(captured[static_cast<size_t>(t * config.top_k)] == -1, t >= valid);
      }
      layer.check();
    }
  }
}

// The bits of y are the same with and without the norm, on every path, even if the norm overwrites x.
TYPED_TEST_P(MoeFeaturesOn, NormsForTheNextLayer) {
  for (const char* model : {"gpt-oss-120b", "deepseek-v3", "nemotron-3-super"}) {
    for (const int64_t tokens : kFeatureTokens) {
      MoeConfig config = feature_config(model);
      config.residual = true;
      FeatureLayer plain(this->target(), config, tokens);
      const auto y = plain.run();
      config.norm_y = true, config.norm_eps = 1e-6;
      FeatureLayer layer(this->target(), config, tokens);
      layer.set(layer.io().residual, plain.template get<uint16_t>(plain.io().residual));
      layer.set(layer.io().norm_weight, std::vector<uint16_t>(static_cast<size_t>(config.hidden), 0x3F80));
      EXPECT_EQ(layer.run(), y) << model << ", " << tokens;
      const auto normed = layer.template get<uint16_t>(layer.io().normed);
      for (int64_t t = 0; t < tokens; ++t) {
        double squares = 0;
        for (int64_t i = t * config.hidden; i < (t + 1) * config.hidden; ++i)
          squares += std::pow(static_cast<double>(to_float(BF16{normed[static_cast<size_t>(i)]})), 2);
        EXPECT_NEAR(squares / static_cast<double>(config.hidden), 1, .01) << model << ", row " << t;
      }
      layer.check();
      layer.io().normed = layer.io().x;
      EXPECT_EQ(layer.run(), y) << model << ", " << tokens;
      EXPECT_EQ(layer.template get<uint16_t>(layer.io().x), normed) << model << ", " << tokens;
    }
  }
}

// Whether a stage runs as a kernel of its own.
inline bool runs_alone(const Moe& moe, int64_t tokens, std::string_view stage) {
  const auto kernels = moe.kernels(tokens);
  return std::any_of(kernels.begin(), kernels.end(), [&](const auto& k) { return k.first == stage; });
}

// y equals the output of a layer whose input was normalized in advance: bit for bit, unless the router
// computes the norm itself.
TYPED_TEST_P(MoeFeaturesOn, NormsWhatItReads) {
  for (const char* model : {"gpt-oss-120b", "deepseek-v3", "nemotron-3-super"}) {
    for (const int64_t tokens : kFeatureTokens) {
      MoeConfig config = feature_config(model);
      FeatureLayer plain(this->target(), config, tokens);
      config.norm_x = true, config.norm_eps = 1e-3;
      FeatureLayer layer(this->target(), config, tokens);
      layer.check();
      const auto y = layer.run();
      const auto norm = make_plan<RmsNorm>(
          this->target(), {.tokens = tokens, .hidden = config.hidden, .eps = config.norm_eps});
      ASSERT_TRUE(norm.ok()) << norm.status().message;
      ASSERT_TRUE(
          norm.value()
              .run({.x = layer.io().x, .weight = layer.io().x_norm_weight, .residual = {}, .y = plain.io().x},
                   {}, this->target().stream())
              .ok());
      const auto wanted = plain.run();
      if (runs_alone(layer.moe(), tokens, "router") && runs_alone(plain.moe(), tokens, "router")) {
        EXPECT_EQ(y, wanted) << model << ", " << tokens;
        continue;
      }
      double off = 0, all = 0;
      for (size_t i = 0; i < y.size(); ++i) {
        const double a = static_cast<double>(to_float(BF16{y[i]})),
                     b = static_cast<double>(to_float(BF16{wanted[i]}));
        off += (a - b) * (a - b), all += b * b;
      }
      EXPECT_LT(off, 4e-4 * all) << model << ", " << tokens;
    }
  }
}

TYPED_TEST_P(MoeFeaturesOn, EachExpertHasItsOwnActivation) {
  for (const char* model : {"gpt-oss-120b", "deepseek-v4-flash"}) {
    for (const int64_t tokens : kFeatureTokens) {
      MoeConfig config = feature_config(model);
      FeatureLayer plain(this->target(), config, tokens);
      config.per_expert = true;
      FeatureLayer layer(this->target(), config, tokens);
      EXPECT_NE(layer.run(), plain.run()) << model;
      layer.check();
      // Equal parameters for every expert act like the config's parameters: the outputs agree with the
      // config's references.
      std::vector<float> same;
      for (int64_t e = 0; e < config.experts; ++e)
        for (const double v : {config.alpha, config.beta, config.limit})
          same.push_back(static_cast<float>(v));
      layer.set(layer.weights().experts.act_params, same);
      layer.check();
      EXPECT_TRUE(runs_alone(layer.moe(), tokens, "experts.up"));
    }
  }
}

TYPED_TEST_P(MoeFeaturesOn, AdaptersOnTheRouterRowByRow) {
  for (const char* model : {"gpt-oss-120b", "deepseek-v4-flash"}) {
    for (const int64_t tokens : kFeatureTokens) {
      MoeConfig config = feature_config(model);
      FeatureLayer base(this->target(), config, tokens);
      (void)base.run();
      config.lora_rank = 8, config.lora_adapters = 3;
      FeatureLayer layer(this->target(), config, tokens);
      std::vector<int32_t> adapter;
      for (int64_t t = 0; t < tokens; ++t) adapter.push_back(static_cast<int32_t>(t % 4) - 1);
      layer.set(layer.io().adapter, adapter);
      (void)layer.run();
      const auto logits = [](const FeatureLayer& of) {
        const Tensor t = of.logits();
        const std::vector<uint8_t> bytes = of.template get<uint8_t>(
            make_tensor(t.data, DType::kU8, {bytes_of(t.dtype, elements_of(t))}, t.where));
        return bytes;
      };
      const auto with = logits(layer), without = logits(base);
      const auto each = static_cast<std::ptrdiff_t>(with.size()) / tokens;
      // With fused stages, the base layer's router is another kernel, so its bits may differ.
      const bool same_router = runs_alone(base.moe(), tokens, "router");
      for (int64_t t = 0; t < tokens; ++t) {
        const bool adapted = adapter[static_cast<size_t>(t)] >= 0;
        if (!adapted && !same_router) continue;
        const auto begin = with.begin() + t * each;
        EXPECT_NE(std::equal(begin, begin + each, without.begin() + t * each), adapted) << model << " " << t;
      }
      layer.check();
    }
  }
}

TYPED_TEST_P(MoeFeaturesOn, AllAtOnceRecordedHasTheBitsOfACall) {
  Device& device = this->target();
  MoeConfig config = feature_config("gpt-oss-120b");
  config.lora_rank = 8, config.lora_adapters = 2, config.padded = config.capture = config.per_expert = true;
  for (const int64_t tokens : kFeatureTokens) {
    FeatureLayer layer(device, config, tokens);
    layer.set(layer.io().tokens_valid, std::vector<int32_t>{static_cast<int32_t>(tokens)});
    const auto eager = layer.run();
    layer.check();
    const auto recording = device.record(device.stream(), [&] {
      return layer.moe().forward(layer.io(), layer.weights(), layer.workspace(), device.stream());
    });
    ASSERT_TRUE(recording.ok()) << recording.status().message;
    layer.set(layer.io().y, std::vector<uint16_t>(eager.size(), 0x7FFF));
    ASSERT_TRUE(device.replay(*recording.value(), device.stream()).ok());
    EXPECT_EQ(layer.template get<uint16_t>(layer.io().y), eager);
  }
}

// Every expert kernel that accepts the layer, selected by full name, by the name's last part, and by phase.
TYPED_TEST_P(MoeFeaturesOn, KernelsOfTheExpertsByName) {
  Device& device = this->target();
  const MoeConfig config = feature_config("gpt-oss-120b");
  FeatureLayer free(device, config, 70);
  const auto kernels_of = [](const FeatureLayer& layer, int64_t tokens, std::string_view stage) {
    std::vector<std::string> out;
    for (const auto& [name, kernel] : layer.moe().kernels(tokens))
      if ((name.find("experts") != std::string::npos) == (stage == "experts")) out.push_back(kernel);
    return out;
  };
  int taken = 0;
  std::string accepted;
  const auto force = [&](const std::string& name, const std::string& word) {
    MoeConfig c = config;
    c.layout = layout_for(device.info().backend);
    const auto planned = Moe::plan(device, c, 70, {}, {.decode = word, .prefill = word});
    if (!planned.ok()) {
      EXPECT_EQ(planned.status().code, Code::kUnsupported) << planned.status().message;
      EXPECT_NE(planned.status().message.find("experts.up"), std::string::npos) << planned.status().message;
      return;
    }
    ++taken, accepted = name;
    for (const int64_t tokens : kFeatureTokens) {
      FeatureLayer layer(device, config, tokens, {.decode = word, .prefill = word});
      for (const std::string& kernel : kernels_of(layer, tokens, "experts"))
        EXPECT_TRUE(kernel == name || kernel.starts_with(name + ":")) << kernel;
      if (layer.moe().kernels(tokens).size() == free.moe().kernels(tokens).size()) {
        EXPECT_EQ(kernels_of(layer, tokens, "rest"), kernels_of(free, tokens, "rest"));
      }
      layer.check();
    }
  };
  for (const Candidate<ExpertGemm>* c : device.catalog().template table<ExpertGemm>())
    force(std::string(c->name), std::string(variant_of(c->name)));
  for (const Candidate<ExpertMlp>* c : device.catalog().template table<ExpertMlp>())
    force(std::string(c->name), std::string(c->name));
  EXPECT_GE(taken, 1);
  const auto unknown = Moe::plan(device, config, 4, {}, {.decode = "no_such_kernel"});
  EXPECT_EQ(unknown.status().code, Code::kInvalidArgument);
  EXPECT_NE(unknown.status().message.find("moe backend: wanted auto or one of "), std::string::npos);

  // Prefers a kernel that starts from ids; otherwise returns a kernel for single products.
  std::string named = accepted;
  for (const Candidate<ExpertMlp>* c : device.catalog().template table<ExpertMlp>())
    if (c->name.find("mxfp4_fewtokens") != std::string_view::npos) named = c->name;
  FeatureLayer phases(device, config, 70, {.decode = named, .prefill = "auto", .decode_tokens = 5});
  for (const std::string& kernel : kernels_of(phases, 5, "experts"))
    EXPECT_TRUE(kernel.starts_with(named)) << kernel;
  EXPECT_EQ(phases.moe().kernels(6), free.moe().kernels(6));
  EXPECT_EQ(phases.moe().kernels(70), free.moe().kernels(70));
  phases.check();
}

REGISTER_TYPED_TEST_SUITE_P(MoeFeaturesOn, GivenIdsAndWeightsHaveTheBitsOfChosenOnes,
                            CapturedIdsAreThoseOfTheWholeModel, RowsOfPaddingHaveNoExpert,
                            NormsForTheNextLayer, NormsWhatItReads, EachExpertHasItsOwnActivation,
                            AdaptersOnTheRouterRowByRow, AllAtOnceRecordedHasTheBitsOfACall,
                            KernelsOfTheExpertsByName, WeightsOfEveryFormat);

}  // namespace sluice::test
