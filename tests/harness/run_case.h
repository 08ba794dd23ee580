// Runs one candidate on one problem and compares its outputs with the reference.
#pragma once
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dispatch/plan.h"
#include "graph/run_plan.h"
#include "harness/cases.h"

namespace sluice::test {

// Compares element by element; reports the number of wrong elements and the worst of them.
inline void expect_within(const Expected& want, const GuardedTensor& memory, const std::string& where) {
  const auto poison = static_cast<uint8_t>(poison_of(memory.view().dtype));
  const Comparison c = compare(want, memory.view(), poison);
  EXPECT_EQ(c.wrong, 0) << where << ": " << c.text;
}

// Observes the launches of a device, if the test can.
class LaunchWatch {
 public:
  virtual ~LaunchWatch() = default;
  virtual void begin(Stream stream) = 0;
  // The kernels launched since begin(), in order.
  virtual std::vector<std::string_view> end(Stream stream) = 0;
};
inline LaunchWatch* launch_watch = nullptr;

// Runs a plan three times on fresh poison: eagerly, then as a recording replayed twice. The bits must agree.
// `image`, if not null, receives the bytes of all tensors. `kernel`: the name of every launch; empty if
// several kernels run.
template <class Op, class AnyPlan>
void run_plan(const AnyPlan& plan, std::string_view kernel, Device& device,
              const typename Op::Problem& problem, HostArgs<Op>& host, const Expectations& wanted,
              const std::string& where, std::vector<std::vector<std::byte>>* image) {
  const Stream stream = device.stream();
  DeviceArgs<Op> on_device(device, host);
  const size_t padded = plan.workspace_bytes() + 2 * kGuardBytes;
  std::vector<std::byte> scratch(padded, std::byte{kGuardPattern});
  std::byte* block = static_cast<std::byte*>(device.allocate(padded).value());
  const Workspace workspace{plan.workspace_bytes() ? block + kGuardBytes : nullptr, plan.workspace_bytes()};
  // The initial inputs and in-out tensors, so that each run starts from the same bytes.
  std::vector<std::vector<std::byte>> fresh;
  for (auto& e : host.tensors())
    fresh.emplace_back(e.memory->start(), e.memory->start() + e.memory->total_bytes());
  const auto restore = [&] {
    for (size_t i = 0; i < fresh.size(); ++i)
      std::memcpy(host.tensors()[i].memory->start(), fresh[i].data(), fresh[i].size());
    std::memset(scratch.data() + kGuardBytes, 0xFF, plan.workspace_bytes());
    ASSERT_TRUE(device.copy(block, scratch.data(), padded, stream).ok());
    ASSERT_TRUE(on_device.upload(stream).ok());
  };
  auto recording = device.record(stream, [&] { return plan.run(on_device.args(), workspace, stream); });
  ASSERT_TRUE(recording.ok()) << where << ": " << recording.status().message;
  std::vector<std::vector<std::byte>> first;
  for (int attempt = 0; attempt < 3; ++attempt) {
    restore();
    if (attempt == 0 && launch_watch) launch_watch->begin(stream);
    const Status status = attempt == 0 ? plan.run(on_device.args(), workspace, stream)
                                       : device.replay(*recording.value(), stream);
    ASSERT_TRUE(status.ok()) << where << ": " << status.message;
    // The launched kernel must be the kernel that the catalog names.
    if (attempt == 0 && launch_watch && !kernel.empty()) {
      for (const std::string_view name : launch_watch->end(stream)) {
        EXPECT_EQ(name, kernel) << where << ": launched another kernel";
      }
    }
    ASSERT_TRUE(on_device.download(stream).ok());
    for (size_t i = 0; i < host.tensors().size(); ++i) {
      auto& e = host.tensors()[i];
      EXPECT_TRUE(e.memory->intact()) << where << ": wrote outside of " << e.name;
      const std::vector<std::byte> now(e.memory->start(), e.memory->start() + e.memory->total_bytes());
      EXPECT_TRUE(e.memory->role() != Role::kIn || now == fresh[i])
          << where << ": changed its input " << e.name;
      if (attempt == 0) first.push_back(now);
      EXPECT_TRUE(now == first[i]) << where << ": " << e.name << " differs between runs";
    }
    std::vector<std::byte> back(padded);
    ASSERT_TRUE(device.copy(back.data(), block, padded, stream).ok());
    ASSERT_TRUE(device.wait(stream).ok());
    for (int64_t b = 0; b < kGuardBytes; ++b)
      ASSERT_TRUE(back[static_cast<size_t>(b)] == std::byte{kGuardPattern} &&
                  back[padded - 1 - static_cast<size_t>(b)] == std::byte{kGuardPattern})
          << where << ": wrote outside of its workspace";
  }
  for (const Expectations& stage : {wanted, expected_given(problem, host.args())}) {
    for (const Expected& want : stage) {
      GuardedTensor* memory = host.find(want.slot);
      ASSERT_NE(memory, nullptr) << where << ": the reference has an unknown output, " << want.slot;
      expect_within(want, *memory, where);
    }
  }
  for (size_t i = 0; i < fresh.size(); ++i)
    std::memcpy(host.tensors()[i].memory->start(), fresh[i].data(), fresh[i].size());
  device.release(block);
  if (image) *image = std::move(first);
}

// A plan of any kind for an operation.
template <class Op>
struct Runnable {
  std::string name;
  size_t workspace_bytes = 0;
  std::function<Status(const typename Op::Args&, Workspace, Stream)> run;
  template <class OnePlan>
  Runnable(std::string called, OnePlan plan)
      : name(std::move(called)), workspace_bytes(plan.workspace_bytes()) {
    run = [kept = std::make_shared<const OnePlan>(std::move(plan))](const typename Op::Args& a, Workspace w,
                                                                    Stream s) { return kept->run(a, w, s); };
  }
};
// The best configuration of each candidate that accepts the problem, and the unfused stages if they are
// known.
template <class Op>
std::vector<Runnable<Op>> all_ways(const Device& device, const typename Op::Problem& problem) {
  std::vector<Runnable<Op>> out;
  for (const Candidate<Op>* c : device.catalog().template table<Op>())
    if (c->supports(problem, device.info()).accepted())
      out.push_back({std::string(c->name), Plan<Op>(c, problem, best_config(*c, problem, device.info()))});
  if constexpr (kHasStages<Op>) {
    auto plan = RunPlan<Op>::stage_by_stage(device.info(), device.catalog(), problem);
    EXPECT_TRUE(plan.ok()) << plan.status().message;
    if (plan.ok()) out.push_back({plan.value().kernel(), std::move(plan).value()});
  }
  return out;
}

// Runs one configuration of a candidate.
template <class Op>
void run_config(const Candidate<Op>& candidate, const Config& config, Device& device,
                const typename Op::Problem& problem, HostArgs<Op>& host, const Expectations& wanted,
                const std::string& where, std::vector<std::vector<std::byte>>* image) {
  run_plan<Op>(Plan<Op>(&candidate, problem, config), candidate.name, device, problem, host, wanted, where,
               image);
}

// Runs a fused operation stage by stage and compares it with the same reference; false if its stages are
// unknown.
template <class Op>
bool run_by_stages(Device& device, const typename Op::Problem& problem, HostArgs<Op>& host,
                   const Expectations& wanted, const std::string& where) {
  if constexpr (kHasStages<Op>) {
    const Graph graph = op_graph<Op>(problem);
    const auto whole = run_at<Op>(graph, 0);
    EXPECT_TRUE(requires(RunGraph<Op> * g) { RunOf<Op>::alone(problem, g); } ||
                (whole && *whole == Op::at_tokens(problem, 0)))
        << where << ": its stages refuse the problem";
    const auto plan = RunPlan<Op>::stage_by_stage(device.info(), device.catalog(), problem);
    EXPECT_TRUE(plan.ok()) << where << ": " << plan.status().message;
    if (plan.ok())
      run_plan<Op>(plan.value(), "", device, problem, host, wanted, where + ", stage by stage", nullptr);
    return plan.ok();
  } else {
    return false;
  }
}

// SLUICE_WITHOUT_CONFIGS: space-separated names of configurations that a tool cannot run.
inline bool left_out(std::string_view config) {
  const char* names = std::getenv("SLUICE_WITHOUT_CONFIGS");
  return names && !config.empty() &&
         (" " + std::string(names) + " ").find(" " + std::string(config) + " ") != std::string::npos;
}

// Runs every configuration that the candidate lists and accepts. If the candidate promises equal bits,
// compares them.
template <class Op>
void run_case(const Candidate<Op>& candidate, Device& device, const typename Op::Problem& problem,
              HostArgs<Op>& host, const Expectations& wanted, const std::string& where) {
  std::vector<std::vector<std::byte>> first;
  int ran = 0;
  for (const Config& config : configs_of(candidate, problem, device.info())) {
    if (!config.refusal.accepted() || left_out(config.name)) continue;
    const std::string what = config.name.empty() ? where : where + ", configuration " + config.name;
    std::vector<std::vector<std::byte>> image;
    run_config(candidate, config, device, problem, host, wanted, what, &image);
    if (::testing::Test::HasFatalFailure()) return;
    if (ran++ == 0) {
      first = std::move(image);
    } else if (candidate.batch_invariant && !candidate.config_decides_bits) {
      EXPECT_TRUE(image == first) << what << ": bits differ from the first configuration's";
    }
  }
  EXPECT_GT(ran, 0) << where << ": supports() accepts it, but no configuration does";
}

// On tensors that begin one element after a multiple of 64 bytes: the listed kernel computes them, or refuses them by name.
template <class Op>
void run_odd(const Candidate<Op>& candidate, Device& device, const typename Op::Problem& problem,
             HostArgs<Op>& host, const Expectations& wanted, const std::string& where) {
  if (candidate.alignment_bytes == 1)
    return run_case(candidate, device, problem, host, wanted, where + ", odd addresses");
  DeviceArgs<Op> on_device(device, host);
  bool odd = false;
  Op::slots(problem, [&](const SlotSpec& spec, Tensor Op::Args::*member) {
    const Tensor& t = on_device.args().*member;
    odd |= spec.used && elements_of(t) > 0 &&
           reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(candidate.alignment_bytes) != 0;
  });
  const Plan<Op> plan(&candidate, problem, best_config(candidate, problem, device.info()),
                      device.info().index);
  const Status status = odd ? plan.run(on_device.args(), {}, device.stream()) : invalid("aligned to");
  EXPECT_EQ(status.code, Code::kInvalidArgument) << where << ": took a tensor that it cannot read";
  EXPECT_NE(status.message.find("aligned to"), std::string::npos) << where << ": " << status.message;
}

// The reference must cover every output that the problem uses.
template <class Op>
void expect_complete(const typename Op::Problem& problem, const typename Op::Args& args,
                     const Expectations& wanted) {
  const Expectations after = expected_given(problem, args);
  Op::slots(problem, [&](const SlotSpec& spec, Tensor Op::Args::*) {
    if (!spec.used || spec.role == Role::kIn) return;
    bool found = false;
    for (const Expectations& stage : {wanted, after})
      for (const Expected& e : stage) found |= e.slot == spec.name;
    EXPECT_TRUE(found) << "the reference does not compute " << spec.name;
  });
}

}  // namespace sluice::test
