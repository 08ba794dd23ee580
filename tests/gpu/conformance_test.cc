// Every CUDA candidate on every case and on fuzzed problems, compared with the reference. A new kernel is
// tested as soon as it is registered.
#include <optional>
#include <set>
#include <vector>

#include "cases/adjust_logits.h"
#include "cases/all_reduce_norm.h"
#include "cases/combine_norm.h"
#include "cases/count_experts.h"
#include "cases/embedding.h"
#include "cases/expert_gemm.h"
#include "cases/expert_lora.h"
#include "cases/expert_mlp.h"
#include "cases/group_rows.h"
#include "cases/grouped_mlp.h"
#include "cases/kv_write.h"
#include "cases/large/attention_large.h"
#include "cases/large/expert_gemm_large.h"
#include "cases/large/linear_large.h"
#include "cases/large/router_gemm_large.h"
#include "cases/large/sample_large.h"
#include "cases/large/top_logprobs_large.h"
#include "cases/latent_attention.h"
#include "cases/latent_norm_rope_kv_write.h"
#include "cases/linear.h"
#include "cases/linear_argmax.h"
#include "cases/lora_delta.h"
#include "cases/mask_logits.h"
#include "cases/norm_router_route.h"
#include "cases/pack_experts.h"
#include "cases/qk_norm_rope_kv_write.h"
#include "cases/qkv_rope_kv_write.h"
#include "cases/rms_norm.h"
#include "cases/rope.h"
#include "cases/rope_kv_write.h"
#include "cases/route_group.h"
#include "cases/route_topk.h"
#include "cases/router_gemm.h"
#include "cases/router_route.h"
#include "cases/sample.h"
#include "cases/take_tokens.h"
#include "cases/top_logprobs.h"

#include "gpu/gpu.h"
#include "harness/model_problems.h"
#include "harness/run_case.h"

namespace sluice::test {
namespace {

// The stream records the names of its last launches.
class QueueWatch final : public LaunchWatch {
 public:
  void begin(Stream stream) override { from_ = cuda::queue_of(stream).enqueued; }
  std::vector<std::string_view> end(Stream stream) override {
    const cuda::Queue& queue = cuda::queue_of(stream);
    std::vector<std::string_view> out;
    for (auto i = from_; i < queue.enqueued; ++i) out.push_back(queue.names[i % cuda::Queue::kNames]);
    return out;
  }

 private:
  decltype(cuda::Queue::enqueued) from_ = 0;
};

template <class Op>
class GpuConformance : public OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    launch_watch = &watch_;
  }
  void TearDown() override { launch_watch = nullptr; }

 private:
  QueueWatch watch_;
};

using Tested =
    ::testing::Types<AdjustLogits, AllReduceNorm, Attention, Combine, CombineNorm, CountExperts, Embedding,
                     ExpertGemm, ExpertLora, ExpertMlp, GroupedMlp, KvWrite, LatentAttention, Linear,
                     LinearArgmax, LoraDelta, MaskLogits, NormRouterRoute, PackExperts, RmsNorm, Rope,
                     RopeKvWrite, QkNormRopeKvWrite, QkvRopeKvWrite, LatentNormRopeKvWrite, RouterGemm,
                     RouteTopk, RouterRoute, GroupRows, RouteGroup, Sample, TakeTokens, TopLogprobs>;
TYPED_TEST_SUITE(GpuConformance, Tested, OpNames);

template <class Op>
std::string describe(const Candidate<Op>& candidate, const std::string& test,
                     const typename Op::Problem& problem) {
  return std::string(candidate.name) + ", " + test + " (" + fields_text(problem) + ")";
}

// SLUICE_CASE_STEP runs every n-th case, from SLUICE_CASE_FIRST on: to divide the cases among processes, and
// for tools that slow each launch down a hundredfold.
TYPED_TEST(GpuConformance, EveryCandidateOnEveryCase) {
  using Op = TypeParam;
  Device& device = this->gpu();
  std::set<std::string_view> idle;
  for (const Candidate<Op>* c : device.catalog().template table<Op>()) idle.insert(c->name);
  EXPECT_FALSE(idle.empty()) << "no candidate";
  const int step = std::max(count_from("SLUICE_CASE_STEP", 1), 1), first = count_from("SLUICE_CASE_FIRST", 0);
  int index = -1;
  std::vector<Case<Op>> cases = Suite<Op>::cases();
  for (const Case<Op>& large : large_cases<Op>()) cases.push_back(large);
  for (const Case<Op>& test : cases) {
    for (const Candidate<Op>* c : device.catalog().template table<Op>())
      if (c->supports(test.problem, device.info()).accepted()) idle.erase(c->name);
    if (++index % step != first % step) continue;
    HostArgs<Op> host(test.problem, test.spread);
    Random random(static_cast<uint64_t>(index) + 1);
    Suite<Op>::fill(test.problem, test.fill, host, random);
    const Expectations wanted = reference(test.problem, host.args());
    expect_complete<Op>(test.problem, host.args(), wanted);
    bool accepted = false;
    for (const Candidate<Op>* c : device.catalog().template table<Op>()) {
      if (!c->supports(test.problem, device.info()).accepted()) continue;
      accepted = true;
      run_case(*c, device, test.problem, host, wanted, describe(*c, test.why, test.problem));
      if (this->HasFatalFailure()) return;
    }
    accepted |= run_by_stages<Op>(device, test.problem, host, wanted, test.why);
    if (this->HasFatalFailure()) return;
    EXPECT_TRUE(accepted) << test.why << " (" << fields_text(test.problem) << "): no candidate accepts it";
  }
  for (const std::string_view name : idle) ADD_FAILURE() << name << " accepted no case";
}

// SLUICE_FUZZ_PROBLEMS and SLUICE_FUZZ_SEED set the number of problems and their seed.
TYPED_TEST(GpuConformance, FuzzedProblems) {
  using Op = TypeParam;
  Device& device = this->gpu();
  const int problems = count_from("SLUICE_FUZZ_PROBLEMS", 100);
  Random random(static_cast<uint64_t>(count_from("SLUICE_FUZZ_SEED", 20)));
  int legal = 0, ran = 0;
  for (int round = 0; legal < problems && round < 20 * problems; ++round) {
    const typename Op::Problem problem = Suite<Op>::random(random);
    if (!Op::validate(problem).accepted()) continue;
    ++legal;
    const auto fill = static_cast<Fill>(random.integer(0, static_cast<int64_t>(Fill::kSkewed)));
    HostArgs<Op> host(problem, coin(random) ? Spread::kStridedRows : Spread::kContiguous);
    Suite<Op>::fill(problem, fill, host, random);
    const Expectations wanted = reference(problem, host.args());
    bool accepted = false;
    for (const Candidate<Op>* c : device.catalog().template table<Op>()) {
      if (!c->supports(problem, device.info()).accepted()) continue;
      accepted = true;
      ++ran;
      run_case(
          *c, device, problem, host, wanted,
          describe(*c, "round " + std::to_string(round) + " fill " + std::to_string(static_cast<int>(fill)),
                   problem));
      if (this->HasFatalFailure()) return;
    }
    accepted |= run_by_stages<Op>(device, problem, host, wanted, fields_text(problem));
    if (this->HasFatalFailure()) return;
    EXPECT_TRUE(accepted) << fields_text(problem) << ": no candidate accepts it";
  }
  EXPECT_EQ(legal, problems) << "the fuzzer generates too many illegal problems";
  std::printf("[   note   ] %d problems, %d runs of candidates\n", legal, ran);
}

// Stages of known layers at their real widths. Each kernel runs its configuration of least predicted cost and
// a random one. There are a tenth as many problems as in FuzzedProblems.
TYPED_TEST(GpuConformance, FuzzedStagesOfKnownLayers) {
  using Op = TypeParam;
  Device& device = this->gpu();
  const int problems = (count_from("SLUICE_FUZZ_PROBLEMS", 100) + 9) / 10;
  Random random(static_cast<uint64_t>(count_from("SLUICE_FUZZ_SEED", 20)) + 1000);
  int ran = 0;
  for (int round = 0; round < problems; ++round) {
    const std::optional<typename Op::Problem> problem = model_problem<Op>(random);
    if (!problem) GTEST_SKIP() << "no known layer has such a stage";
    const Fill fill = coin(random) ? Fill::kNormal : Fill::kSkewed;
    HostArgs<Op> host(*problem, Spread::kContiguous);
    Suite<Op>::fill(*problem, fill, host, random);
    const Expectations wanted = reference(*problem, host.args());
    bool accepted = false;
    for (const Candidate<Op>* c : device.catalog().template table<Op>()) {
      if (!c->supports(*problem, device.info()).accepted()) continue;
      accepted = true;
      std::vector<Config> configs = configs_of(*c, *problem, device.info());
      const auto best = static_cast<size_t>(cheapest(configs));
      const auto other = static_cast<size_t>(random.integer(0, static_cast<int64_t>(configs.size()) - 1));
      for (const size_t i : std::set<size_t>{best, other}) {
        if (!configs[i].refusal.accepted()) continue;
        ++ran;
        const std::string where = describe(*c, "round " + std::to_string(round), *problem);
        run_config(*c, configs[i], device, *problem, host, wanted,
                   where + ", configuration " + configs[i].name, nullptr);
        if (this->HasFatalFailure()) return;
      }
    }
    accepted |= run_by_stages<Op>(device, *problem, host, wanted, fields_text(*problem));
    if (this->HasFatalFailure()) return;
    EXPECT_TRUE(accepted) << fields_text(*problem) << ": no candidate accepts it";
  }
  std::printf("[   note   ] %d problems, %d runs of candidates\n", problems, ran);
}

// A wrong tensor is rejected by name before any launch.
TYPED_TEST(GpuConformance, BadTensorsAreRefusedByName) {
  using Op = TypeParam;
  using Args = typename Op::Args;
  Device& device = this->gpu();
  for (const Case<Op>& test : Suite<Op>::cases()) {
    const auto plan = plan_op<Op>(device, test.problem);
    ASSERT_TRUE(plan.ok()) << plan.status().message;
    HostArgs<Op> host(test.problem, Spread::kContiguous);
    DeviceArgs<Op> on_device(device, host);
    Loan scratch(device, plan.value().workspace_bytes() + 1);
    const Workspace workspace{scratch.data(), scratch.bytes()};
    Op::slots(test.problem, [&](const SlotSpec& spec, Tensor Args::*member) {
      const auto refuses = [&](auto change, const char* how) {
        Args args = on_device.args();
        change(args.*member);
        const Status status = plan.value().run(args, workspace, this->stream());
        EXPECT_EQ(status.code, Code::kInvalidArgument) << spec.name << ": " << how;
        EXPECT_NE(status.message.find(std::string(spec.name)), std::string::npos)
            << how << ": " << status.message;
      };
      if (!spec.used) return;
      refuses([](Tensor& t) { t.dtype = t.dtype == DType::kI16 ? DType::kU8 : DType::kI16; }, "dtype");
      refuses([](Tensor& t) { ++t.shape[0]; }, "shape");
      if (elements_of(on_device.args().*member) == 0) return;
      refuses([](Tensor& t) { t.data = nullptr; }, "null pointer");
      refuses([](Tensor& t) { t.where = Backend::kCpu; }, "device");
      if (bits_of(spec.dtype) > 8)
        refuses([](Tensor& t) { t.data = t.template as<char>() + 1; }, "alignment");
    });
    if (plan.value().workspace_bytes() == 0) continue;
    const Status status = plan.value().run(on_device.args(), {scratch.data(), 0}, this->stream());
    EXPECT_NE(status.message.find("workspace"), std::string::npos) << status.message;
  }
}

}  // namespace
}  // namespace sluice::test
