// Compares MoE layers with PyTorch's results, recorded by tools/parity/record_moe.py and record_latent.py, on
// any device. A fixture provides `targets()`, the devices, and `kF32`, whether they accept f32 activations.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "harness/test_data.h"
#include "nn/moe/canary.h"
#include "nn/moe/load.h"
#include "nn/owned_tensor.h"
#include "ops/bounds.h"
#include "weights/files.h"

namespace sluice::test {

// One recorded layer, routed in one way.
struct RecordedMoe {
  std::string name;
  MoeConfig config;
  MoeNaming naming = MoeNaming::kDeepSeekV4;
  int64_t layer = 0, tokens = 0;
  double weight_share = 1;  // upper bound of a weight's relative error per unit of its logit's error
  std::vector<float> x;     // [tokens, hidden], bf16 values
  std::vector<int32_t> token_ids, ids;
  std::vector<float> weights, y, noise, noise_most, y_bf16;
  std::vector<double> logit_error;  // per token: the error of a logit from f32 sums
  std::vector<StoredTensor> tensors;

  // DeepSeek-V4: layer 0 in MXFP4 with a shared expert in FP8, layer 1 in bf16, routed by "score" or by
  // "hash". With sqrt(softplus), a score's relative error is half of its logit's error, and a weight is a
  // score divided by a sum of scores.
  static RecordedMoe deepseek_v4(int64_t layer, const std::string& way) {
    const auto file = open("deepseek-v4");
    const std::string number = std::to_string(layer), ffn = "layers." + number + ".ffn.";
    const std::string mine = way + "." + number + ".";
    RecordedMoe r;
    r.name = "DeepSeek-V4, layer " + number + " by " + way, r.layer = layer;
    r.config = known_moe(way == "hash" ? "deepseek-v4-flash-hash" : "deepseek-v4-flash").value();
    r.token_ids = values<int32_t>(at(*file, "input." + number + ".token_ids"));
    for (const CheckpointTensor& t : file->tensors()) {
      if (t.name.starts_with(ffn)) r.take(t, t.name);
      if (t.name == mine + "bias" || t.name == mine + "tid2eid")
        r.take(t, ffn + "gate." + t.name.substr(mine.size()));
    }
    const CheckpointTensor& down = at(*file, ffn + "shared_experts.w2.weight");
    r.config.intermediate = r.config.shared_intermediate = down.shape[1];
    if (layer == 1) r.config.expert_w = DType::kBF16, r.config.scale = 2.5;
    if (way == "hash") r.config.hash_vocab = at(*file, mine + "tid2eid").shape[0];
    r.read(*file, "input." + number + ".x", ffn + "gate.weight", mine);
    return r;
  }
  // Nemotron 3 Super: experts between latent projections. With a sigmoid, a score's relative error is its
  // logit's error.
  static RecordedMoe nemotron_3() {
    const auto file = open("nemotron-3-super");
    const std::string mixer = "backbone.layers.0.mixer.";
    RecordedMoe r;
    r.name = "Nemotron 3 Super", r.naming = MoeNaming::kNemotron3, r.weight_share = 2;
    r.config = known_moe("nemotron-3-super").value();
    for (const CheckpointTensor& t : file->tensors())
      if (t.name.starts_with(mixer)) r.take(t, t.name);
    const CheckpointTensor& down = at(*file, mixer + "experts.0.down_proj.weight");
    r.config.latent = down.shape[0], r.config.intermediate = down.shape[1];
    r.config.shared_intermediate = at(*file, mixer + "shared_experts.up_proj.weight").shape[0];
    r.read(*file, "input.x", mixer + "gate.weight", "score.");
    return r;
  }
  static std::vector<RecordedMoe> all() {
    std::vector<RecordedMoe> out;
    for (int64_t layer : {0, 1})
      for (const char* way : {"score", "hash"}) out.push_back(deepseek_v4(layer, way));
    out.push_back(nemotron_3());
    return out;
  }

 private:
  static std::unique_ptr<Checkpoint> open(const std::string& name) {
    auto file = Checkpoint::open(test_data("parity/" + name + ".safetensors"));
    EXPECT_TRUE(file.ok()) << file.status().message;
    return std::move(file).value();
  }
  void read(const Checkpoint& file, const std::string& input, const std::string& gate,
            const std::string& mine) {
    x = from_bf16(at(file, input));
    ids = values<int32_t>(at(file, mine + "ids"));
    weights = values<float>(at(file, mine + "weights"));
    y = values<float>(at(file, mine + "y"));
    noise = values<float>(at(file, mine + "y.noise"));
    noise_most = values<float>(at(file, mine + "y.noise_most"));
    y_bf16 = from_bf16(at(file, mine + "y.bf16"));
    tokens = at(file, input).shape[0];
    config.hidden = at(file, input).shape[1];
    config.experts = at(file, gate).shape[0];
    config.top_k = at(file, mine + "ids").shape[1];
    bound_logits(from_bf16(at(file, gate)));
  }
  static const CheckpointTensor& at(const Checkpoint& file, const std::string& name) {
    const auto found = file.find(name);
    EXPECT_TRUE(found.ok()) << found.status().message;
    return *found.value();
  }
  template <class T>
  static std::vector<T> values(const CheckpointTensor& t) {
    std::vector<T> out(static_cast<size_t>(t.bytes) / sizeof(T));
    std::memcpy(out.data(), t.data, out.size() * sizeof(T));
    return out;
  }
  static std::vector<float> from_bf16(const CheckpointTensor& t) {
    std::vector<float> out;
    for (uint16_t bits : values<uint16_t>(t)) out.push_back(to_float(BF16{bits}));
    return out;
  }
  void take(const CheckpointTensor& t, const std::string& name) {
    tensors.push_back({{name, t.type, t.shape}, {t.data, t.data + t.bytes}});
  }
  // From ops/router_gemm.h: the error of a sum of products is at most (width + 5) eps times the sum of their
  // magnitudes.
  void bound_logits(const std::vector<float>& gate) {
    const auto width = static_cast<size_t>(config.hidden);
    for (size_t t = 0; t < static_cast<size_t>(tokens); ++t) {
      double most = 0;
      for (size_t e = 0; e < static_cast<size_t>(config.experts); ++e) {
        double sum = 0;
        for (size_t k = 0; k < width; ++k) sum += std::abs(double{x[t * width + k]} * gate[e * width + k]);
        most = std::max(most, sum);
      }
      logit_error.push_back(static_cast<double>(width + 5) * kF32Eps * most);
    }
  }
};

// A recorded layer on a device, and its outputs for the first rows of x.
class OracleRun {
 public:
  OracleRun(Device& device, const RecordedMoe& recorded, const MoeConfig& config, const Slice& slice = {})
      : device_(device), recorded_(recorded) {
    write_tensors(at_.file("model.safetensors"), recorded.tensors);
    auto checkpoint = Checkpoint::open(at_.path());
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message;
    checkpoint_ = std::move(checkpoint).value();
    MoeConfig whole = config;
    whole.layout = layout_for(device.info().backend);
    auto loaded =
        load_moe(device, *checkpoint_, whole,
                 {.naming = recorded.naming, .layer = recorded.layer, .slice = slice, .threads = 2});
    EXPECT_TRUE(loaded.ok()) << loaded.status().message;
    loaded_ = std::move(loaded).value();
    auto planned = Moe::plan(device, loaded_->config(), recorded.tokens);
    EXPECT_TRUE(planned.ok()) << planned.status().message;
    moe_ = std::move(planned).value();
  }
  struct Answer {
    std::vector<float> y;        // [tokens, hidden]
    std::vector<int32_t> ids;    // [tokens, slots]
    std::vector<float> weights;  // [tokens, slots]
  };
  Answer answer(int64_t tokens) {
    const MoeConfig& c = loaded_->config();
    const OwnedTensor x = sent(as_activations(tokens), slot("", Role::kIn, c.x, {tokens, c.hidden}));
    const OwnedTensor y = lend(slot("", Role::kIn, c.x, {tokens, c.hidden}));
    const OwnedTensor scratch =
        lend(slot("", Role::kIn, DType::kU8, {static_cast<int64_t>(moe_->workspace_bytes())}));
    OwnedTensor ids;
    MoeIo io{.x = x.view(), .residual = {}, .token_ids = {}, .y = y.view()};
    if (c.method == RoutingMethod::kHash) {
      ids = sent(recorded_.token_ids, slot("", Role::kIn, DType::kI32, {tokens}));
      io.token_ids = ids.view();
    }
    const Workspace workspace{scratch.view().as<std::byte>(), moe_->workspace_bytes()};
    const Status status = moe_->forward(io, loaded_->weights(), workspace, device_.stream());
    EXPECT_TRUE(status.ok()) << status.message;
    const MoeChoice choice = moe_->choice(tokens, workspace);
    Answer a{.y = {}, .ids = fetched<int32_t>(choice.ids), .weights = fetched<float>(choice.weights)};
    if (c.x == DType::kF32) a.y = fetched<float>(y.view());
    if (c.x == DType::kBF16)
      for (uint16_t bits : fetched<uint16_t>(y.view())) a.y.push_back(to_float(BF16{bits}));
    return a;
  }
  LoadedMoe& loaded() const { return *loaded_; }
  const Checkpoint& checkpoint() const { return *checkpoint_; }

 private:
  std::vector<std::byte> as_activations(int64_t tokens) const {
    const auto count = static_cast<size_t>(tokens * recorded_.config.hidden);
    const bool f32 = loaded_->config().x == DType::kF32;
    std::vector<std::byte> out(count * (f32 ? 4 : 2));
    for (size_t i = 0; i < count; ++i) {
      const BF16 half = to_bf16(recorded_.x[i]);
      f32 ? std::memcpy(&out[4 * i], &recorded_.x[i], 4) : std::memcpy(&out[2 * i], &half, 2);
    }
    return out;
  }
  OwnedTensor lend(const SlotSpec& spec) const { return OwnedTensor::make(device_, spec, "test").value(); }
  template <class T>
  OwnedTensor sent(const std::vector<T>& from, const SlotSpec& spec) const {
    OwnedTensor to = lend(spec);
    EXPECT_TRUE(
        device_.copy(to.view().data, from.data(), static_cast<size_t>(to.bytes()), device_.stream()).ok());
    EXPECT_TRUE(device_.wait(device_.stream()).ok());
    return to;
  }
  template <class T>
  std::vector<T> fetched(const Tensor& t) const {
    std::vector<T> out(static_cast<size_t>(elements_of(t)));
    EXPECT_TRUE(device_.copy(out.data(), t.data, out.size() * sizeof(T), device_.stream()).ok());
    EXPECT_TRUE(device_.wait(device_.stream()).ok());
    return out;
  }
  Device& device_;
  const RecordedMoe& recorded_;
  TemporaryDirectory at_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<LoadedMoe> loaded_;
  std::unique_ptr<Moe> moe_;
};

// Compares rows of y; errors are relative to the allowed error.
inline void expect_rows_within(const RecordedMoe& r, const std::vector<float>& y, double noise_scale,
                               double rms_allowed, double max_allowed) {
  const auto hidden = static_cast<size_t>(r.config.hidden);
  for (size_t t = 0; t < y.size() / hidden; ++t) {
    double squares = 0, most = 0;
    for (size_t i = t * hidden; i < (t + 1) * hidden; ++i) {
      const double off = std::abs(double{y[i]} - double{r.y[i]});
      ASSERT_TRUE(std::isfinite(off)) << "token " << t;
      squares += off * off, most = std::max(most, off);
    }
    EXPECT_LE(std::sqrt(squares / static_cast<double>(hidden)), rms_allowed * noise_scale * r.noise[t])
        << "token " << t;
    EXPECT_LE(most, max_allowed * noise_scale * r.noise_most[t]) << "token " << t;
  }
}

// Expects the recorded experts in order, and weights within the error caused by f32 logits.
inline void expect_choice(const RecordedMoe& r, const OracleRun::Answer& a, int64_t tokens) {
  const auto k = static_cast<size_t>(r.config.top_k), slots = a.ids.size() / static_cast<size_t>(tokens);
  for (size_t t = 0; t < static_cast<size_t>(tokens); ++t) {
    for (size_t i = 0; i < k; ++i) {
      EXPECT_EQ(a.ids[t * slots + i], r.ids[t * k + i]) << "token " << t << ", choice " << i;
      const double weight = r.weights[t * k + i], share = r.weight_share * r.logit_error[t] + 64 * kF32Eps;
      EXPECT_NEAR(a.weights[t * slots + i], weight, share * weight) << "token " << t << ", choice " << i;
    }
  }
}

template <class Fixture>
class MoeOracleOn : public Fixture {
 protected:
  // Checks every recorded layer after `change`; if `change` returns false, the layer is skipped.
  template <class Change>
  void expect_recorded(double noise_scale, double rms_allowed, double max_allowed, Change change) {
    for (const RecordedMoe& recorded : RecordedMoe::all()) {
      MoeConfig config = recorded.config;
      if (!change(&config)) continue;
      for (Device* device : this->targets()) {
        SCOPED_TRACE(recorded.name + " on " + text(device->info()));
        OracleRun run(*device, recorded, config);
        for (int64_t tokens : {int64_t{1}, int64_t{5}, recorded.tokens}) {
          SCOPED_TRACE(std::to_string(tokens) + " tokens");
          const OracleRun::Answer a = run.answer(tokens);
          expect_choice(recorded, a, tokens);
          expect_rows_within(recorded, a.y, noise_scale, rms_allowed, max_allowed);
        }
      }
    }
  }
};
TYPED_TEST_SUITE_P(MoeOracleOn);

// Bounds as in tests/models/parity_test.cc: a bf16 implementation rounds each stored value once, so its error
// is another sample from the distribution of the recorded runs.
TYPED_TEST_P(MoeOracleOn, LayersInBf16AreWithinTheNoiseOfTheirRoundings) {
  this->expect_recorded(1, 4, 2, [](MoeConfig*) { return true; });
}

TYPED_TEST_P(MoeOracleOn, AnswersInF32BeforeTheirSumAreWithinTheSameNoise) {
  this->expect_recorded(1, 4, 2, [](MoeConfig* c) { return c->g = DType::kF32, true; });
}

TYPED_TEST_P(MoeOracleOn, ASharedExpertAsASlotIsWithinTheSameNoise) {
  this->expect_recorded(1, 4, 2, [](MoeConfig* c) { return c->shared_as_slots = shared_fits_slots(*c); });
}

// The same roundings, 2^16 times finer, plus the error of sums (at most 160 terms here).
TYPED_TEST_P(MoeOracleOn, LayersInF32AreWithinTheNoiseOfTheirSums) {
  if (!TypeParam::kF32) GTEST_SKIP() << "only the CPU accepts f32 activations";
  this->expect_recorded(0x1p-16, 16, 16, [](MoeConfig* c) { return c->x = c->g = DType::kF32, true; });
}

// The ranks' outputs add up to the layer, whether ranks split the experts or, if an expert has more than one
// block of 32, its width.
TYPED_TEST_P(MoeOracleOn, RanksAddUpToTheRecord) {
  if (!TypeParam::kF32) GTEST_SKIP() << "only the CPU accepts f32 activations";
  for (const RecordedMoe& recorded : RecordedMoe::all()) {
    MoeConfig config = recorded.config;
    config.x = config.g = DType::kF32;
    for (const Slice& size : {Slice{.ep_size = 2}, Slice{.tp_size = 2}}) {
      if (size.tp_size > 1 && config.intermediate <= kMxBlock) continue;
      SCOPED_TRACE(recorded.name + ", tp " + std::to_string(size.tp_size));
      for (Device* device : this->targets()) {
        std::vector<float> sum(recorded.y.size());
        for (int64_t rank = 0; rank < 2; ++rank) {
          Slice slice = size;
          (size.tp_size > 1 ? slice.tp_rank : slice.ep_rank) = rank;
          const auto part = OracleRun(*device, recorded, config, slice).answer(recorded.tokens);
          for (size_t i = 0; i < sum.size(); ++i) sum[i] += part.y[i];
        }
        expect_rows_within(recorded, sum, 0x1p-16, 16, 16);
      }
    }
  }
}

// Canary and fingerprints cover every matrix of a layer: both detect a corrupted matrix, and so does a
// comparison of outputs.
TYPED_TEST_P(MoeOracleOn, ASpoiltMatrixIsFound) {
  for (const RecordedMoe& recorded : RecordedMoe::all()) {
    for (Device* device : this->targets()) {
      SCOPED_TRACE(recorded.name + " on " + text(device->info()));
      OracleRun run(*device, recorded, recorded.config);
      const Status healthy = canary(*device, run.loaded(), run.checkpoint());
      EXPECT_TRUE(healthy.ok()) << healthy.message;
      EXPECT_TRUE(run.loaded().verify().ok());
      const MoeWeights& w = run.loaded().weights();
      for (const Tensor& t : {w.experts.down, w.shared.up, w.latent_in, w.latent_out}) {
        if (!t.present()) continue;
        std::vector<std::byte> bytes(static_cast<size_t>(bytes_of(t.dtype, elements_of(t))));
        const auto move = [&](void* to, const void* from) {
          EXPECT_TRUE(device->copy(to, from, bytes.size(), device->stream()).ok());
          EXPECT_TRUE(device->wait(device->stream()).ok());
        };
        move(bytes.data(), t.data);
        const std::vector<std::byte> zeros(bytes.size());
        move(t.data, zeros.data());
        EXPECT_EQ(canary(*device, run.loaded(), run.checkpoint()).code, Code::kCorrupt);
        EXPECT_EQ(run.loaded().verify().code, Code::kCorrupt);
        move(t.data, bytes.data());
      }
      EXPECT_TRUE(run.loaded().verify().ok());
    }
  }
}

// PyTorch also rounds W13's sums, and the weights before W2. If PyTorch's results exceeded a bound, the bound
// would be too narrow.
TYPED_TEST_P(MoeOracleOn, PyTorchsOwnBf16IsWithinTheBounds) {
  for (const RecordedMoe& recorded : RecordedMoe::all()) {
    SCOPED_TRACE(recorded.name);
    expect_rows_within(recorded, recorded.y_bf16, 1, 4, 2);
  }
}

REGISTER_TYPED_TEST_SUITE_P(MoeOracleOn, LayersInBf16AreWithinTheNoiseOfTheirRoundings,
                            AnswersInF32BeforeTheirSumAreWithinTheSameNoise,
                            ASharedExpertAsASlotIsWithinTheSameNoise, LayersInF32AreWithinTheNoiseOfTheirSums,
                            RanksAddUpToTheRecord, ASpoiltMatrixIsFound, PyTorchsOwnBf16IsWithinTheBounds);

}  // namespace sluice::test
