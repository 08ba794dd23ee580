// Experts' weights that stay in L2 across launches, so that stages of weights arrive much sooner than from
// memory. A kernel that releases shared memory too early then multiplies bytes of the next stage: an error
// that occurs occasionally, and only in this test. Every run must have the bits of the first run, which are
// checked.
//
// SLUICE_HOT_REPLAYS is the number of replays, with four launches each; 0 suits tools that slow a launch down
// a hundredfold.
#include <set>

#include "cases/expert_mlp.h"
#include "cases/linear.h"
#include "dispatch/plan.h"
#include "gpu/gpu.h"
#include "gpu/neighbours.h"

namespace sluice::test {
namespace {

constexpr int kAtOnce = 4;  // launches between two checks of the output

class HotWeights : public OnGpu {
 protected:
  // Runs every configuration of every kernel that accepts the problem, and compares sampled elements of y with `wanted`.
  // Returns the names of the kernels.
  template <class Op>
  void hammer(const typename Op::Problem& problem, const typename Op::Args& args, const Expected& wanted) {
    for (const Candidate<Op>* c : gpu().catalog().template table<Op>()) {
      if (!c->supports(problem, gpu().info()).accepted()) continue;
      ran_.insert(c->name);
      for (const Config& config : configs_of(*c, problem, gpu().info())) {
        if (!config.refusal.accepted()) continue;
        hammer(*c, config, problem, args, wanted,
               std::string(c->name) + ":" + config.name + " (" + fields_text(problem) + ")");
        if (HasFatalFailure()) return;
      }
    }
  }
  void expect_ran(std::initializer_list<std::string_view> names) const {
    for (const std::string_view name : names)
      EXPECT_TRUE(ran_.contains(name)) << name << " accepted no problem";
  }

 private:
  template <class Op>
  void hammer(const Candidate<Op>& candidate, const Config& config, const typename Op::Problem& problem,
              const typename Op::Args& args, const Expected& wanted, const std::string& where) {
    const Plan<Op> plan(&candidate, problem, config);
    const auto bytes = static_cast<size_t>(bytes_of(args.y.dtype, elements_of(args.y)));
    const size_t apart = (bytes + 255) / 256 * 256;
    Loan scratch(gpu(), plan.workspace_bytes() + 1), y(gpu(), kAtOnce * apart), first(gpu(), bytes),
        count(gpu(), sizeof(uint32_t));
    const auto run = [&](int i) {
      typename Op::Args a = args;
      a.y.data = y.data() + static_cast<size_t>(i) * apart;
      return plan.run(a, {scratch.data(), plan.workspace_bytes()}, stream());
    };
    const auto look = [&](int i) {
      std::byte* got = y.data() + static_cast<size_t>(i) * apart;
      auto* words = reinterpret_cast<uint32_t*>(count.data());
      return cuda::check(compare_and_forget(first.data(), got, bytes, words, native()), "a look at y");
    };
    ASSERT_EQ(cudaMemset(y.data(), kForgotten, y.bytes()), cudaSuccess);
    ASSERT_EQ(cudaMemset(count.data(), 0, count.bytes()), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    ASSERT_TRUE(run(0).ok()) << where;
    ASSERT_TRUE(gpu().copy(first.data(), y.data(), bytes, stream()).ok());
    std::vector<std::byte> bits(bytes);
    ASSERT_TRUE(gpu().copy(bits.data(), first.data(), bytes, stream()).ok());
    const Status status = gpu().wait(stream());
    ASSERT_TRUE(status.ok()) << where << ": " << status.message;
    Tensor host = args.y;
    host.data = bits.data(), host.where = Backend::kCpu;
    const Comparison c = compare(wanted, host, std::nullopt);
    EXPECT_EQ(c.wrong, 0) << where << ": " << c.text;

    const auto recording = gpu().record(stream(), [&]() -> Status {
      for (int i = 0; i < kAtOnce; ++i) SLUICE_TRY(run(i));
      for (int i = 0; i < kAtOnce; ++i) SLUICE_TRY(look(i));
      return {};
    });
    ASSERT_TRUE(recording.ok()) << where << ": " << recording.status().message;
    const int replays = count_from("SLUICE_HOT_REPLAYS", 10);
    for (int i = 0; i < replays; ++i) ASSERT_TRUE(gpu().replay(*recording.value(), stream()).ok()) << where;
    uint32_t differ = 0;
    ASSERT_TRUE(gpu().copy(&differ, count.data(), sizeof differ, stream()).ok());
    ASSERT_TRUE(gpu().wait(stream()).ok()) << where;
    EXPECT_EQ(differ, 0u) << where << ": words that differ from the first run, in " << kAtOnce * replays;
  }

  std::set<std::string_view> ran_;
};

// About 50 ordered rows of x per expert (several tiles), then at most `most` (one tile). The problem's
// expected rows choose the width of the tiles.
class HotGemm : public HotWeights {
 protected:
  static constexpr int64_t kExperts = 8, kRowsEach = 50, kSampled = 4;

  void hammer_widths(ExpertGemm::Problem p) {
    p.rows = kExperts * kRowsEach, p.experts = kExperts, p.layout = WeightLayout::kFragments,
    p.settled = true;
    HostArgs<ExpertGemm> host(p, Spread::kContiguous);
    Random random(3);
    Suite<ExpertGemm>::fill(p, Fill::kNormal, host, random);
    auto* begin = host.args().row_begin.as<int32_t>();
    auto* count = host.args().row_count.as<int32_t>();
    const std::vector<int32_t> begins(begin, begin + kExperts), counts(count, count + kExperts);
    for (const int32_t most : {1000, 7}) {
      for (int64_t e = 0; e < kExperts; ++e) begin[e] = begins[e], count[e] = std::min(counts[e], most);
      DeviceArgs<ExpertGemm> live(gpu(), host);
      ASSERT_TRUE(live.upload(stream()).ok());
      // The reference computes sampled rows of some experts.
      for (int64_t e = 0; e < kExperts; ++e) {
        begin[e] += e % 2 ? count[e] - 1 : count[e] / 2;
        count[e] = e < kSampled ? std::min(count[e], 1) : 0;
      }
      const Expectations wanted = reference(p, host.args());
      ASSERT_EQ(wanted.size(), 1u);
      for (const int64_t expected : {3, 8, 50}) {
        p.rows_expected = expected * kExperts;
        hammer<ExpertGemm>(p, live.args(), wanted[0]);
        if (HasFatalFailure()) return;
      }
    }
  }
};

TEST_F(HotGemm, ShortSumsOfBf16) {
  hammer_widths({.features = 4096, .width = 192, .w = DType::kBF16});
  expect_ran({"cuda.expert_gemm.bf16_stream_sm90"});
}
TEST_F(HotGemm, ShortSumsOfMxfp4) {
  hammer_widths({.features = 4096, .width = 384, .bias = true});
  expect_ran({"cuda.expert_gemm.mxfp4_stream_sm90"});
}
TEST_F(HotGemm, GatesAndUpsOfMxfp4) {
  hammer_widths({.features = 736,
                 .width = 1088,
                 .act = Activation::kSwiGluClamped,
                 .alpha = 1.702,
                 .beta = 1,
                 .limit = 7,
                 .bias = true});
  expect_ran({"cuda.expert_gemm.mxfp4_stream_sm90"});
}
TEST_F(HotGemm, LongSumsOfMxfp4) {
  hammer_widths({.features = 1088, .width = 1472});
  expect_ran({"cuda.expert_gemm.mxfp4_stream_sm90"});
}

// Both products. A GPU has fewer teams than there are row blocks, so rings wrap around.
class HotMlp : public HotWeights {
 protected:
  void hammer_tokens(ExpertMlp::Problem p, std::initializer_list<int64_t> counts) {
    p.layout = WeightLayout::kFragments, p.residual = true;
    HostArgs<ExpertMlp> host(p, Spread::kContiguous);
    Random random(5);
    Suite<ExpertMlp>::fill(p, Fill::kNormal, host, random);
    DeviceArgs<ExpertMlp> live(gpu(), host);
    ASSERT_TRUE(live.upload(stream()).ok());
    const auto first = [](ExpertMlp::Args a, int64_t tokens) {
      for (Tensor* t : {&a.x, &a.ids, &a.weights, &a.residual, &a.y}) t->shape[0] = tokens;
      return a;
    };
    const Expectations one = reference(ExpertMlp::at_tokens(p, 1), first(host.args(), 1));
    ASSERT_EQ(one.size(), 1u);
    for (const int64_t tokens : counts) {
      Expected wanted = one[0];  // of the first token, for any tokens after it
      const auto all = static_cast<size_t>(tokens * p.hidden);
      wanted.untouched.assign(wanted.value.size(), 0);
      wanted.untouched.resize(all, 1), wanted.value.resize(all), wanted.bound.resize(all);
      hammer<ExpertMlp>(ExpertMlp::at_tokens(p, tokens), first(live.args(), tokens), wanted);
      if (HasFatalFailure()) return;
    }
  }
};

TEST_F(HotMlp, Mxfp4) {
  hammer_tokens(Suite<ExpertMlp>::gpt_oss(8, 16, 1472, 736), {1, 2, 4, 8});
  expect_ran({"cuda.expert_mlp.mxfp4_slices_sm90", "cuda.expert_mlp.mxfp4_fewtokens_sm90"});
}
TEST_F(HotMlp, Bf16) {
  ExpertMlp::Problem p = Suite<ExpertMlp>::gpt_oss(8, 16, 736, 384);
  p.w = DType::kBF16;
  hammer_tokens(p, {1, 2, 4, 8});
  expect_ran({"cuda.expert_mlp.bf16_fewtokens_sm90"});
}

// More units than CTAs, so that rings wrap around; tiles of every size.
TEST_F(HotWeights, DenseLayers) {
  const Linear::Problem p{.tokens = 200, .features = 4400, .width = 1024, .bias = true};
  HostArgs<Linear> host(p, Spread::kContiguous);
  Random random(7);
  Suite<Linear>::fill(p, Fill::kNormal, host, random);
  DeviceArgs<Linear> live(gpu(), host);
  ASSERT_TRUE(live.upload(stream()).ok());
  const auto first = [](Linear::Args a, int64_t tokens) {
    a.x.shape[0] = a.y.shape[0] = tokens;
    return a;
  };
  const Expectations one = reference(Linear::at_tokens(p, 1), first(host.args(), 1));
  ASSERT_EQ(one.size(), 1u);
  for (const int64_t tokens : {1, 8, 40, 200}) {
    Expected wanted = one[0];  // of the first row, for any rows after it
    const auto all = static_cast<size_t>(tokens * p.features);
    wanted.untouched.assign(wanted.value.size(), 0);
    wanted.untouched.resize(all, 1), wanted.value.resize(all), wanted.bound.resize(all);
    hammer<Linear>(Linear::at_tokens(p, tokens), first(live.args(), tokens), wanted);
    if (HasFatalFailure()) return;
  }
  expect_ran({"cuda.linear.stream_sm90", "cuda.linear.tile_sm90", "cuda.linear.split_sm90"});
}

}  // namespace
}  // namespace sluice::test
