// MoE layers on a device with its own memory, from a checkpoint to the output: compared with the references,
// with the same layer on a CPU, and with their own recordings. One suite serves all such devices; a fixture
// provides `Device& target()`.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "backends/cpu/device.h"
#include "harness/moe_reach.h"
#include "nn/moe/canary.h"
#include "nn/owned_tensor.h"

namespace sluice::test {

// gpt-oss at a size for which a reference is fast: widths that are not multiples of 64, and seven blocks of
// 32, which no number of ranks divides evenly.
inline MoeConfig small_gpt_oss() {
  MoeConfig c = small_config(MoeNaming::kGptOss);
  c.hidden = 160, c.intermediate = 224;
  return c;
}

inline MoeConfig for_backend(MoeConfig c, Backend backend) {
  c.layout = layout_for(backend);
  return c;
}

// Random bf16 rows of x.
inline std::vector<uint16_t> random_rows(int64_t tokens, int64_t hidden, uint64_t seed) {
  Random random(seed);
  std::vector<uint16_t> out(static_cast<size_t>(tokens * hidden));
  for (uint16_t& v : out) v = to_bf16(static_cast<float>(random.normal())).bits;
  return out;
}

// A planned layer, with memory at fixed addresses for calls of up to tokens_max tokens.
class Running {
 public:
  Running(Device& device, const MoeConfig& config, int64_t tokens_max) : device_(device) {
    auto planned = Moe::plan(device, config, tokens_max);
    EXPECT_TRUE(planned.ok()) << planned.status().message;
    moe_ = std::move(planned).value();
    const auto lend = [&](DType dtype, std::initializer_list<int64_t> shape) {
      return OwnedTensor::make(device, slot("", Role::kIn, dtype, shape), "test").value();
    };
    x_ = lend(config.x, {tokens_max, config.hidden});
    y_ = lend(config.x, {tokens_max, config.hidden});
    scratch_ = lend(DType::kU8, {static_cast<int64_t>(moe_->workspace_bytes())});
  }
  const Moe& moe() const { return *moe_; }
  Workspace workspace() const { return {scratch_.view().as<std::byte>(), moe_->workspace_bytes()}; }
  MoeIo io(int64_t tokens) const {
    const auto first = [&](Tensor t) { return t.shape[0] = tokens, t; };
    return {.x = first(x_.view()), .residual = {}, .token_ids = {}, .y = first(y_.view())};
  }
  // Uploads rows, overwrites y and the workspace with garbage, calls f, which enqueues the layer, and returns
  // y.
  template <class F>
  std::vector<uint16_t> answer(const std::vector<uint16_t>& rows, F f) {
    const Stream stream = device_.stream();
    const std::vector<std::byte> spoilt(std::max<size_t>(moe_->workspace_bytes(), rows.size() * 2),
                                        std::byte{0xFF});
    EXPECT_TRUE(device_.copy(x_.view().data, rows.data(), rows.size() * 2, stream).ok());
    EXPECT_TRUE(device_.copy(y_.view().data, spoilt.data(), rows.size() * 2, stream).ok());
    EXPECT_TRUE(device_.copy(workspace().data, spoilt.data(), workspace().bytes, stream).ok());
    const Status status = f();
    EXPECT_TRUE(status.ok()) << status.message;
    std::vector<uint16_t> out(rows.size());
    EXPECT_TRUE(device_.copy(out.data(), y_.view().data, out.size() * 2, stream).ok());
    EXPECT_TRUE(device_.wait(stream).ok());
    return out;
  }
  std::vector<uint16_t> eager(const std::vector<uint16_t>& rows, const MoeWeights& weights) {
    return answer(rows, [&] { return forward(rows, weights); });
  }
  Result<std::unique_ptr<Recording>> record(int64_t tokens, const MoeWeights& weights) {
    return device_.record(device_.stream(),
                          [&] { return moe_->forward(io(tokens), weights, workspace(), device_.stream()); });
  }
  std::vector<uint16_t> replayed(const Recording& recording, const std::vector<uint16_t>& rows) {
    return answer(rows, [&] { return device_.replay(recording, device_.stream()); });
  }

 private:
  Status forward(const std::vector<uint16_t>& rows, const MoeWeights& weights) {
    const int64_t tokens = static_cast<int64_t>(rows.size()) / moe_->config().hidden;
    return moe_->forward(io(tokens), weights, workspace(), device_.stream());
  }
  Device& device_;
  std::unique_ptr<Moe> moe_;
  OwnedTensor x_, y_, scratch_;
};

// A random layer and its checkpoint.
struct Model {
  explicit Model(const MoeConfig& config, uint64_t seed = 5, MoeNaming of = MoeNaming::kGptOss)
      : naming(of), moe(config, seed), file(moe.tensors(of, 0)) {}
  std::unique_ptr<LoadedMoe> load(Device& device, const Slice& slice = {}) const {
    auto out = load_moe(device, *file.checkpoint, for_backend(moe.config, device.info().backend),
                        {.naming = naming, .slice = slice, .threads = 2});
    EXPECT_TRUE(out.ok()) << out.status().message;
    return std::move(out).value();
  }
  MoeNaming naming;
  RandomMoe moe;
  Written file;
};

// Per token: whether every correct router must choose the same experts, and the relative error allowed for
// its weights.
struct Choice {
  bool clear;
  double weight_error;
};
inline std::vector<Choice> choices_of(const RandomMoe& m, const Tensor& x) {
  const MoeConfig& c = m.config;
  const RouterGemm::Problem p{.tokens = x.shape[0],
                              .experts = c.experts,
                              .hidden = c.hidden,
                              .x = c.x,
                              .w = c.router_w,
                              .y = c.logits,
                              .bias = c.router_bias};
  auto *w = const_cast<uint16_t*>(m.router.data()), *bias = const_cast<uint16_t*>(m.router_bias.data());
  const Expected logits = reference(p, {.x = x,
                                        .w = make_tensor(w, DType::kBF16, {c.experts, c.hidden}),
                                        .bias = make_tensor(bias, DType::kBF16, {c.experts}),
                                        .y = {}})[0];
  std::vector<Choice> out;
  for (int64_t t = 0; t < x.shape[0]; ++t) {
    std::vector<std::pair<double, double>> row;  // value and bound
    for (int64_t e = 0; e < c.experts; ++e) {
      const auto at = static_cast<size_t>(t * c.experts + e);
      row.emplace_back(logits.value[at], logits.bound[at]);
    }
    std::sort(row.rbegin(), row.rend());
    double worst = 0;
    for (const auto& [value, bound] : row) worst = std::max(worst, bound);
    const auto k = static_cast<size_t>(c.top_k);
    // The softmax weight of a chosen expert changes by at most a factor of e^(2 bound); a single expert
    // always has weight 1.
    out.push_back(
        {row[k - 1].first - row[k].first > 2 * worst, k == 1 ? 0 : std::expm1(2 * worst) + 64 * kF32Eps});
  }
  return out;
}

// Compares y with the output of a layer on a CPU, or with the ranks' sum, within the combined error of both.
struct Agreement {
  int64_t compared = 0, skipped = 0;  // tokens
  double worst = 0, loosest = 0;      // error relative to the bound; bound relative to the largest output
};
inline Agreement agree(const RandomMoe& m, std::vector<uint16_t> rows, const std::vector<double>& y,
                       const std::vector<double>& wanted, double roundings) {
  const int64_t hidden = m.config.hidden, tokens = static_cast<int64_t>(rows.size()) / hidden;
  const Tensor x = make_tensor(rows.data(), DType::kBF16, {tokens, hidden});
  const std::vector<Reach> reach = reach_of(m, x);
  const std::vector<Choice> choices = choices_of(m, x);
  Agreement out;
  double largest = 0, loosest = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    const Choice& choice = choices[static_cast<size_t>(t)];
    ++(choice.clear ? out.compared : out.skipped);
    for (int64_t i = 0; choice.clear && i < hidden; ++i) {
      const auto at = static_cast<size_t>(t * hidden + i);
      const Reach& r = reach[at];
      const double bound =
          2 * (r.error + choice.weight_error * r.magnitude) + roundings * half_ulp(DType::kBF16, r.magnitude);
      EXPECT_LE(std::abs(y[at] - wanted[at]), bound) << "token " << t << " column " << i;
      out.worst = std::max(out.worst, std::abs(y[at] - wanted[at]) / bound);
      largest = std::max(largest, std::abs(wanted[at]));
      loosest = std::max(loosest, bound);
    }
  }
  out.loosest = loosest / largest;
  EXPECT_GE(out.compared, 9 * out.skipped) << "too many near ties: hardly any token was compared";
  EXPECT_LT(out.loosest, 0.5) << "the bound is too loose to prove anything";
  return out;
}
inline std::vector<double> numbers_of(const std::vector<uint16_t>& bits) {
  std::vector<double> out;
  for (uint16_t b : bits) out.push_back(to_float(BF16{b}));
  return out;
}

template <class Fixture>
class MoeOn : public Fixture {
 protected:
  // The output of the same checkpoint on a CPU.
  std::vector<double> on_cpu(const Model& model, const std::vector<uint16_t>& rows) {
    const auto cpu = cpu::open_device({.threads = 2}).value();
    const auto loaded = model.load(*cpu);
    const int64_t tokens = static_cast<int64_t>(rows.size()) / model.moe.config.hidden;
    return numbers_of(
        Running(*cpu, loaded->config(), std::max<int64_t>(tokens, 1)).eager(rows, loaded->weights()));
  }
};
TYPED_TEST_SUITE_P(MoeOn);

TYPED_TEST_P(MoeOn, EveryStageIsWithinItsBounds) {
  Device& device = this->target();
  const Model model(small_gpt_oss());
  const auto loaded = model.load(device);
  Running run(device, loaded->config(), 70);
  for (int64_t tokens : {0, 1, 5, 70}) {
    const auto rows = random_rows(tokens, loaded->config().hidden, 7);
    (void)run.eager(rows, loaded->weights());
    const auto checks = run.moe().check(run.io(tokens), loaded->weights(), run.workspace(), device.stream());
    ASSERT_TRUE(checks.ok()) << checks.status().message;
    const auto kernels = run.moe().kernels(tokens);
    ASSERT_EQ(checks.value().size(), kernels.size());
    for (size_t i = 0; i < kernels.size(); ++i) EXPECT_EQ(checks.value()[i].stage, kernels[i].first);
    for (const StageCheck& c : checks.value())
      EXPECT_LE(c.worst, 1) << tokens << " tokens: " << c.stage << " " << c.kernel << ": " << c.detail;
  }
}

TYPED_TEST_P(MoeOn, VerifyAndCanaryNoticeChangedBytes) {
  Device& device = this->target();
  const Model model(small_gpt_oss());
  const auto loaded = model.load(device);
  Running run(device, loaded->config(), 5);
  (void)run.eager(random_rows(5, loaded->config().hidden, 7), loaded->weights());
  // Scales that differ from the checkpoint's: the layer computes with them, and the canary detects the
  // difference.
  std::vector<uint8_t> scales(static_cast<size_t>(elements_of(loaded->weights().experts.down_scale)), 200);
  ASSERT_TRUE(
      device.copy(loaded->weights().experts.down_scale.data, scales.data(), scales.size(), device.stream())
          .ok());
  EXPECT_EQ(canary(device, *loaded, *model.file.checkpoint).code, Code::kCorrupt);
  const Status verified = loaded->verify();
  EXPECT_EQ(verified.code, Code::kCorrupt);
  EXPECT_NE(verified.message.find("layer 0: packed weights: expert 0: fingerprint"), std::string::npos)
      << verified.message;
}

TYPED_TEST_P(MoeOn, TheWholeLayerAgreesWithTheCpu) {
  Device& device = this->target();
  const Model model(small_gpt_oss());
  const auto loaded = model.load(device);
  Running run(device, loaded->config(), 300);
  const auto all = random_rows(300, loaded->config().hidden, 8);
  for (int64_t tokens : {0, 1, 3, 17, 64, 300}) {
    const std::vector<uint16_t> rows(all.begin(), all.begin() + tokens * loaded->config().hidden);
    const auto y = run.eager(rows, loaded->weights());
    if (tokens == 0) continue;
    const Agreement a = agree(model.moe, rows, numbers_of(y), this->on_cpu(model, rows), 2);
    std::printf(
        "[   note   ] %d tokens: %d compared, %.3f of the bound, which is %.3f of the largest output\n",
        static_cast<int>(tokens), static_cast<int>(a.compared), a.worst, a.loosest);
  }
}

// Routing that random data never produces: every token chooses the same experts.
TYPED_TEST_P(MoeOn, AllTokensOnOneExpert) {
  Device& device = this->target();
  MoeConfig config = small_gpt_oss();
  config.top_k = 1;
  RandomMoe moe(config, 5);
  std::fill(moe.router_bias.begin(), moe.router_bias.end(), to_bf16(0.f).bits);
  moe.router_bias[6] = to_bf16(64.f).bits;
  Model model(config);
  model.moe = moe;
  const Written file(moe.tensors(MoeNaming::kGptOss, 0));
  const auto loaded = load_moe(device, *file.checkpoint, for_backend(config, device.info().backend), {});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message;
  const auto cpu = cpu::open_device({.threads = 2}).value();
  const auto here = load_moe(*cpu, *file.checkpoint, config, {});
  ASSERT_TRUE(here.ok()) << here.status().message;
  for (int64_t tokens : {1, 40, 130}) {
    const auto rows = random_rows(tokens, config.hidden, 9);
    Running run(device, loaded.value()->config(), tokens);
    Running wanted(*cpu, here.value()->config(), tokens);
    const Agreement a = agree(moe, rows, numbers_of(run.eager(rows, loaded.value()->weights())),
                              numbers_of(wanted.eager(rows, here.value()->weights())), 2);
    EXPECT_EQ(a.skipped, 0);
  }
}

TYPED_TEST_P(MoeOn, ARecordingFollowsItsInputsAndHasTheBitsOfACall) {
  Device& device = this->target();
  const Model model(small_gpt_oss());
  const auto loaded = model.load(device);
  Running run(device, loaded->config(), 64);
  for (int64_t tokens : {1, 17, 64}) {
    const auto recording = run.record(tokens, loaded->weights());
    ASSERT_TRUE(recording.ok()) << recording.status().message;
    std::vector<uint16_t> before;
    for (uint64_t seed : {11, 12, 13, 11}) {  // different inputs route differently; the first is repeated
      const auto rows = random_rows(tokens, loaded->config().hidden, seed);
      const auto eager = run.eager(rows, loaded->weights());
      EXPECT_TRUE(run.replayed(*recording.value(), rows) == eager) << tokens << " tokens, seed " << seed;
      EXPECT_FALSE(eager == before) << tokens << " tokens, seed " << seed;
      before = eager;
    }
  }
}

TYPED_TEST_P(MoeOn, AReplacedExpertIsAsIfFreshlyLoadedUnderARecording) {
  Device& device = this->target();
  const Model model(small_gpt_oss(), 5), other(small_gpt_oss(), 6);
  RandomMoe after = model.moe;
  after.gate[5] = other.moe.gate[5], after.up[5] = other.moe.up[5], after.down[5] = other.moe.down[5];
  const auto take_bias = [](std::vector<uint16_t>& to, const std::vector<uint16_t>& from) {
    const auto each = static_cast<std::ptrdiff_t>(to.size() / 8);
    std::copy_n(from.begin() + 5 * each, each, to.begin() + 5 * each);
  };
  take_bias(after.up_bias, other.moe.up_bias), take_bias(after.down_bias, other.moe.down_bias);
  const Written file(after.tensors(MoeNaming::kGptOss, 0));
  const auto loaded = model.load(device);
  const auto fresh = load_moe(device, *file.checkpoint, for_backend(after.config, device.info().backend), {});
  ASSERT_TRUE(fresh.ok()) << fresh.status().message;
  Running run(device, loaded->config(), 40);
  const auto rows = random_rows(40, loaded->config().hidden, 14);
  const auto recording = run.record(40, loaded->weights());
  ASSERT_TRUE(recording.ok()) << recording.status().message;
  const auto old_y = run.replayed(*recording.value(), rows);
  MoeWeights was = loaded->weights();
  const Status replaced = loaded->replace_expert(*other.file.checkpoint, 5);
  ASSERT_TRUE(replaced.ok()) << replaced.message;
  MoeWeights is = loaded->weights();
  const auto slots = weight_slots(loaded->config(), &was), now = weight_slots(loaded->config(), &is);
  for (size_t i = 0; i < slots.size(); ++i) EXPECT_EQ(slots[i].second->data, now[i].second->data);
  EXPECT_EQ(loaded->fingerprint(), fresh.value()->fingerprint());
  EXPECT_TRUE(loaded->verify().ok());
  const auto new_y = run.replayed(*recording.value(), rows);
  EXPECT_FALSE(new_y == old_y) << "some token must choose expert 5";
  EXPECT_TRUE(new_y == run.eager(rows, fresh.value()->weights()));
}

// Packing on this device gives the same bytes and fingerprint as packing on a CPU.
TYPED_TEST_P(MoeOn, PacksWhatACpuPacks) {
  Device& device = this->target();
  const Model model(small_gpt_oss());
  for (const Slice& slice : {Slice{}, Slice{.tp_rank = 1, .tp_size = 2, .ep_rank = 1, .ep_size = 2}}) {
    const auto loaded = model.load(device, slice);
    const auto cpu = cpu::open_device({.threads = 2}).value();
    const auto here = load_moe(*cpu, *model.file.checkpoint, for_backend(model.moe.config, Backend::kCuda),
                               {.slice = slice});
    ASSERT_TRUE(here.ok()) << here.status().message;
    MoeWeights far = loaded->weights(), near = here.value()->weights();
    const auto slots = weight_slots(loaded->config(), &far), wanted = weight_slots(loaded->config(), &near);
    for (size_t i = 0; i < slots.size(); ++i) {
      const Tensor &t = *slots[i].second, &want = *wanted[i].second;
      if (!want.present()) continue;
      const auto bytes = static_cast<size_t>(bytes_of(want.dtype, elements_of(want)));
      std::vector<std::byte> got(bytes);
      ASSERT_TRUE(device.copy(got.data(), t.data, bytes, device.stream()).ok());
      ASSERT_TRUE(device.wait(device.stream()).ok());
      EXPECT_EQ(std::memcmp(got.data(), want.data, bytes), 0) << slots[i].first.name;
    }
    EXPECT_EQ(loaded->fingerprint(), here.value()->fingerprint());
    EXPECT_TRUE(loaded->verify().ok());
    const Status status = canary(device, *loaded, *model.file.checkpoint);
    EXPECT_TRUE(status.ok()) << status.message;
  }
}

TYPED_TEST_P(MoeOn, RanksAddUp) {
  Device& device = this->target();
  const Model model(small_gpt_oss());
  constexpr int64_t kTokens = 20;
  const auto rows = random_rows(kTokens, model.moe.config.hidden, 15);
  const auto answer_of = [&](const Slice& slice) {
    const auto loaded = model.load(device, slice);
    return numbers_of(Running(device, loaded->config(), kTokens).eager(rows, loaded->weights()));
  };
  const std::vector<double> whole = answer_of({});
  for (const auto& [tp, ep] : {std::pair<int64_t, int64_t>{2, 1}, {4, 1}, {1, 2}, {1, 3}, {2, 2}}) {
    std::vector<double> sum(whole.size());
    for (int64_t t = 0; t < tp; ++t)
      for (int64_t e = 0; e < ep; ++e) {
        const auto part = answer_of({t, tp, e, ep});
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
      }
    (void)agree(model.moe, rows, sum, whole, static_cast<double>(1 + tp * ep));
  }
}

// DeepSeek V3's choice of experts, whole and split into ranks, compared with the same layer with a separate
// path for the shared expert.
TYPED_TEST_P(MoeOn, SharedSlotsGiveWhatAPathOfTheirOwnGives) {
  Device& device = this->target();
  MoeConfig config = small_config(MoeNaming::kDeepSeekV3);
  config.hidden = 160, config.intermediate = 96, config.shared_intermediate = 2 * 96;
  config.experts = 256, config.groups = 8, config.topk_groups = 4, config.top_k = 8;
  Model model(config, 5, MoeNaming::kDeepSeekV3);
  ASSERT_EQ(shared_slots(config), 2);
  const auto slots = model.load(device);
  const Status looked = canary(device, *slots, *model.file.checkpoint);
  EXPECT_TRUE(looked.ok()) << looked.message;
  EXPECT_TRUE(slots->verify().ok());
  for (int64_t tokens : {1, 5, 70}) {
    auto rows = random_rows(tokens, config.hidden, 21);
    const auto answer_of = [&](const LoadedMoe& loaded) {
      return numbers_of(Running(device, loaded.config(), tokens).eager(rows, loaded.weights()));
    };
    Running run(device, slots->config(), tokens);
    const auto got = numbers_of(run.eager(rows, slots->weights()));
    const auto checks = run.moe().check(run.io(tokens), slots->weights(), run.workspace(), device.stream());
    ASSERT_TRUE(checks.ok()) << checks.status().message;
    EXPECT_GE(checks.value().size(),
              2u);  // router and experts; five if each stage has its own kernel
    for (const StageCheck& c : checks.value())
      EXPECT_LE(c.worst, 1) << tokens << " tokens: " << c.stage << " " << c.kernel << ": " << c.detail;
    std::vector<double> ranks(got.size());
    for (int64_t rank = 0; rank < 2; ++rank) {
      const auto part =
          answer_of(*model.load(device, {.tp_rank = 0, .tp_size = 1, .ep_rank = rank, .ep_size = 2}));
      for (size_t i = 0; i < ranks.size(); ++i) ranks[i] += part[i];
    }
    model.moe.config.shared_as_slots = false;
    const auto apart = answer_of(*model.load(device));
    model.moe.config.shared_as_slots = true;
    const Tensor x = make_tensor(rows.data(), DType::kBF16, {tokens, config.hidden});
    const std::vector<Reach> reach = reach_of(model.moe, x);
    double largest = 0, loosest = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      // The same router chose the experts, with weights that differ by a few roundings. The separate path
      // also rounds its output to bf16, and ranks round their parts.
      const double bound = 2 * (reach[i].error + 64 * kF32Eps * reach[i].magnitude) +
                           4 * half_ulp(DType::kBF16, reach[i].magnitude);
      EXPECT_LE(std::abs(got[i] - apart[i]), bound) << tokens << " tokens, at " << i;
      EXPECT_LE(std::abs(got[i] - ranks[i]), bound) << tokens << " tokens, ranks, at " << i;
      largest = std::max(largest, std::abs(apart[i])), loosest = std::max(loosest, bound);
    }
    EXPECT_LT(loosest, largest / 2) << "the bound is too loose to prove anything";
  }
}

TYPED_TEST_P(MoeOn, WhatCannotBeLoadedIsRefusedByName) {
  Device& device = this->target();
  const Model model(small_gpt_oss());
  MoeConfig panels = model.moe.config;
  panels.layout = WeightLayout::kPanels16;
  const Status layout = load_moe(device, *model.file.checkpoint, panels, {}).status();
  EXPECT_EQ(layout.code, Code::kInvalidArgument);
  EXPECT_NE(layout.message.find("layer 0: layout: wanted fragments, which cuda packs, found panels16"),
            std::string::npos)
      << layout.message;
  RandomMoe bad = model.moe;
  bad.down[2].scales[7] = 255;
  const Written file(bad.tensors(MoeNaming::kGptOss, 0));
  const MoeConfig config = for_backend(bad.config, device.info().backend);
  const Status fresh = load_moe(device, *file.checkpoint, config, {}).status();
  EXPECT_EQ(fresh.code, Code::kCorrupt);
  EXPECT_NE(fresh.message.find("down_proj_scales: expert 2, row 1, block 0"), std::string::npos)
      << fresh.message;
  const auto loaded = model.load(device);
  const uint64_t print = loaded->fingerprint();
  EXPECT_EQ(loaded->replace_expert(*file.checkpoint, 2).code, Code::kCorrupt);
  EXPECT_EQ(loaded->fingerprint(), print);
  EXPECT_TRUE(loaded->verify().ok());
}

REGISTER_TYPED_TEST_SUITE_P(MoeOn, EveryStageIsWithinItsBounds, VerifyAndCanaryNoticeChangedBytes,
                            TheWholeLayerAgreesWithTheCpu, AllTokensOnOneExpert,
                            ARecordingFollowsItsInputsAndHasTheBitsOfACall,
                            AReplacedExpertIsAsIfFreshlyLoadedUnderARecording, PacksWhatACpuPacks, RanksAddUp,
                            SharedSlotsGiveWhatAPathOfTheirOwnGives, WhatCannotBeLoadedIsRefusedByName);

}  // namespace sluice::test
