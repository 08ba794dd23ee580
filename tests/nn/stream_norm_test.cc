// Who norms what a layer's attention reads: a device whose kernels are compositions that pass for kernels of their own.
#include <gtest/gtest.h>

#include "backends/cpu/device.h"
#include "harness/engine_runs.h"
#include "harness/offering_device.h"

namespace sluice::test {
namespace {

constexpr const char *kNorm = "cpu.rms_norm.rows", *kApart = "cpu.qkv_rope_kv_write.in_turn",
                     *kJoined = "cpu.norm_qkv_rope_kv_write.in_turn";

// Both devices take the experts of up to five tokens as one operation, so that the norm behind it is a launch.
struct Devices {
  std::unique_ptr<Device> cpu = cpu::open_device({.threads = 1}).value();
  OfferingDevice by_launches{*cpu};
  Offering<NormQkvRopeKvWrite> by_projections{by_launches};
};

int64_t runs_of(const Engine& engine, std::string_view kernel) {
  for (const KernelRuns::Entry& e : engine.kernel_runs().all())
    if (e.kernel == kernel) return e.runs;
  return 0;
}

// A prompt of four tokens, and seven steps in all.
Request short_request() {
  Request r{.prompt = {3, 1, 4, 1}};
  r.sampling.max_tokens = 7;
  return r;
}

TEST(StreamNorm, ProjectionsSaveALaunchOfEachLayerAndNoBitChanges) {
  Devices on;
  const DecoderModel model(small_decoder());
  const int64_t layers = model.config.layers(), steps = 7;
  for (const int64_t recorded : {0, 8}) {
    EngineOptions options = roomy();
    options.recorded_sequences = recorded;
    const auto plain = engine_of(on.by_launches, model, options);
    const auto joined = engine_of(on.by_projections, model, options);
    EXPECT_EQ(run(*plain, {short_request()}), run(*joined, {short_request()}));
    EXPECT_EQ(runs_of(*plain, kNorm), (layers + 1) * steps);
    EXPECT_EQ(runs_of(*plain, kApart), layers * steps);
    EXPECT_EQ(runs_of(*joined, kNorm), steps) << "the last layer's alone";
    EXPECT_EQ(runs_of(*joined, kJoined), layers * steps);
    EXPECT_EQ(runs_of(*joined, kApart), 0);
  }
}

TEST(StreamNorm, LongerStepsAndThoseOfOneKernelForAllKeepTheirLaunches) {
  Devices on;
  const DecoderModel model(small_decoder());
  Request longer = short_request();
  longer.prompt.assign(Offering<ExpertMlp>::kOwnTokens + 1, 2);
  longer.sampling.max_tokens = 1;
  const auto joined = engine_of(on.by_projections, model, roomy());
  EXPECT_EQ(run(*engine_of(on.by_launches, model, roomy()), {longer}), run(*joined, {longer}));
  EXPECT_EQ(runs_of(*joined, kApart), model.config.layers()) << "combine norms for the next layer";
  EngineOptions invariant = roomy();
  invariant.policy.batch_invariant = true;
  const auto same_bits = engine_of(on.by_projections, model, invariant);
  run(*same_bits, {short_request()});
  EXPECT_EQ(runs_of(*same_bits, kJoined), 0);
}

// What explain tells has a kernel's problem for each launch.
TEST(StreamNorm, ProblemsAreThoseOfTheLaunches) {
  Devices on;
  const DecoderConfig c = small_decoder();
  const StepBounds bounds;
  const auto by = [&](const Device& device, int64_t tokens, MoePath path, const Policy& policy = {}) {
    return stream_norm(c, bounds, tokens, path, device.info(), device.catalog(), policy);
  };
  EXPECT_EQ(by(on.by_projections, 1, MoePath::kAsOne), StreamNorm::kByProjections);
  EXPECT_EQ(by(on.by_projections, kNormedTokensMost, MoePath::kAsOne), StreamNorm::kByProjections);
  EXPECT_EQ(by(on.by_projections, kNormedTokensMost + 1, MoePath::kAsOne), StreamNorm::kByLaunches);
  EXPECT_EQ(by(on.by_projections, 1, MoePath::kParts), StreamNorm::kByLaunches);
  EXPECT_EQ(by(on.by_launches, 1, MoePath::kAsOne), StreamNorm::kByLaunches) << "its kernels are in turn";
  EXPECT_EQ(by(on.by_projections, 1, MoePath::kAsOne, {.batch_invariant = true}), StreamNorm::kByLaunches);
  const auto count = [&](StreamNorm norm, std::string_view op) {
    int64_t out = 0;
    for (const StageProblem& s : decoder_problems(c, bounds, 1, 1, MoePath::kAsOne, norm))
      out += s.problem->op() == op;
    return out;
  };
  EXPECT_EQ(count(StreamNorm::kByLaunches, "rms_norm"), c.layers() + 1);
  EXPECT_EQ(count(StreamNorm::kByLaunches, "qkv_rope_kv_write"), c.layers());
  EXPECT_EQ(count(StreamNorm::kByProjections, "rms_norm"), 1);
  EXPECT_EQ(count(StreamNorm::kByProjections, "norm_qkv_rope_kv_write"), c.layers());
}

// A call leaves its norm to the next layer only where it is a launch.
TEST(StreamNorm, OnlyALaunchCanBeLeft) {
  Devices on;
  MoeConfig config = layer_moe(small_decoder());
  const auto moe = Moe::plan(on.by_launches, config, 8).value();
  EXPECT_TRUE(norm_is_a_launch(config, moe->path(5)));
  EXPECT_FALSE(norm_is_a_launch(config, moe->path(6)));
  EXPECT_EQ(moe->kernels(5).size(), moe->kernels(5, true).size() + 1);
  EXPECT_EQ(moe->kernels(5).back().first, "norm.next");
}

}  // namespace
}  // namespace sluice::test
