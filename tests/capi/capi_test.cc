#include <cstring>
#include <map>

#include "backends/cpu/device.h"
#include "capi/support.h"
#include "dispatch/explain.h"
#include "graph/any_op.h"
#include "harness/allocations.h"
#include "ops/router_gemm.h"

namespace sluice::test {
namespace {

struct PlanHandle {
  explicit PlanHandle(const CapiDevice& d, const char* problem = CapiGate::kProblem,
                      const sluice_policy* policy = nullptr) {
    Message error;
    EXPECT_EQ(sluice_plan_create(d.device, "router_gemm", problem, policy, &plan, error), SLUICE_OK)
        << error.str();
  }
  ~PlanHandle() { sluice_plan_destroy(plan); }
  size_t bytes() const { return sluice_plan_workspace_bytes(plan); }
  sluice_plan* plan = nullptr;
};

// The gate's output from the C++ API.
std::vector<float> through_cpp(CapiGate& gate) {
  const auto device = cpu::open_device({.threads = 2}).value();
  RouterGemm::Problem problem;
  EXPECT_TRUE(parse_fields(CapiGate::kProblem, &problem).ok());
  const auto plan = make_plan<RouterGemm>(*device, problem).value();
  std::vector<float> y(15);
  std::vector<std::byte> scratch(plan.workspace_bytes() + 1);
  const RouterGemm::Args args{.x = make_tensor(gate.x.data(), DType::kF32, {3, 7}),
                              .w = make_tensor(gate.w.data(), DType::kF32, {5, 7}),
                              .bias = make_tensor(gate.bias.data(), DType::kF32, {5}),
                              .y = make_tensor(y.data(), DType::kF32, {3, 5})};
  EXPECT_TRUE(plan.run(args, {scratch.data(), plan.workspace_bytes()}, device->stream()).ok());
  return y;
}

TEST(Capi, APlanGivesTheBitsOfTheCppPlan) {
  CapiDevice device;
  CapiGate gate;
  PlanHandle plan(device);
  Message error;
  const sluice_launch launch = gate.launch(device, plan.bytes());
  ASSERT_EQ(sluice_plan_run(plan.plan, &launch, error), SLUICE_OK) << error.str();
  ASSERT_EQ(sluice_wait(device.device, launch.stream, error), SLUICE_OK) << error.str();
  const std::vector<float> want = through_cpp(gate);
  EXPECT_EQ(std::memcmp(gate.y.data(), want.data(), want.size() * sizeof(float)), 0);
  EXPECT_EQ(std::string(sluice_plan_kernel(plan.plan)).substr(0, 16), "cpu.router_gemm.");
}

TEST(Capi, ATableGivesTheBitsOfThePlanAndListsItsSteps) {
  CapiDevice device;
  CapiGate gate;
  Message error;
  sluice_table* table = nullptr;
  ASSERT_EQ(sluice_table_create(device.device, "router_gemm", CapiGate::kProblem, 16, nullptr, &table, error),
            SLUICE_OK)
      << error.str();
  const sluice_launch launch = gate.launch(device, sluice_table_workspace_bytes(table));
  ASSERT_EQ(sluice_table_run(table, 3, &launch, error), SLUICE_OK) << error.str();
  EXPECT_EQ(gate.y, through_cpp(gate));

  int64_t next = 0;
  const size_t steps = sluice_table_step_count(table);
  ASSERT_GT(steps, 0u);
  for (size_t i = 0; i < steps; ++i) {
    sluice_step step;
    ASSERT_EQ(sluice_table_step(table, i, &step, error), SLUICE_OK) << error.str();
    EXPECT_EQ(step.first, next);
    EXPECT_NE(std::string(step.kernel), "");
    EXPECT_LE(step.workspace_bytes, sluice_table_workspace_bytes(table));
    next = step.last + 1;
  }
  EXPECT_EQ(next, 17);
  sluice_step step;
  EXPECT_EQ(sluice_table_step(table, steps, &step, error), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(sluice_table_run(table, 17, &launch, error), SLUICE_INVALID_ARGUMENT);
  EXPECT_NE(error.str().find("0 to 16 tokens"), std::string::npos) << error.str();
  sluice_table_destroy(table);
}

TEST(Capi, LaunchesDoNotAllocate) {
  CapiDevice device;
  CapiGate gate;
  PlanHandle plan(device);
  Message error;
  sluice_table* table = nullptr;
  ASSERT_EQ(sluice_table_create(device.device, "router_gemm", CapiGate::kProblem, 4, nullptr, &table, error),
            SLUICE_OK);
  const sluice_launch launch =
      gate.launch(device, std::max(plan.bytes(), sluice_table_workspace_bytes(table)));
  const int64_t start = allocations();
  { const PlanHandle another(device); }
  ASSERT_GT(allocations(), start) << "the library's allocations are not counted, so this test cannot fail";
  const int64_t before = allocations();
  const sluice_status ran = sluice_plan_run(plan.plan, &launch, error);
  const sluice_status ran_table = sluice_table_run(table, 3, &launch, error);
  const int64_t after = allocations();
  EXPECT_EQ(after, before);
  EXPECT_EQ(ran, SLUICE_OK) << error.str();
  EXPECT_EQ(ran_table, SLUICE_OK) << error.str();
  sluice_table_destroy(table);
}

struct Step {
  const sluice_plan* plan;
  const sluice_launch* launch;
  sluice_status answer;
};

TEST(Capi, ARecordingRunsWhenItIsReplayed) {
  CapiDevice device;
  CapiGate gate;
  PlanHandle plan(device);
  Message error;
  const sluice_launch launch = gate.launch(device, plan.bytes());
  Step step{plan.plan, &launch, SLUICE_OK};
  const sluice_enqueue enqueue = [](void* context) {
    const Step& s = *static_cast<Step*>(context);
    return s.answer == SLUICE_OK ? sluice_plan_run(s.plan, s.launch, nullptr) : s.answer;
  };
  sluice_recording* recording = nullptr;
  ASSERT_EQ(sluice_record(device.device, launch.stream, enqueue, &step, &recording, error), SLUICE_OK)
      << error.str();
  EXPECT_EQ(gate.y, std::vector<float>(15, -1.f)) << "recording must run nothing";
  ASSERT_EQ(sluice_replay(device.device, recording, launch.stream, error), SLUICE_OK) << error.str();
  EXPECT_EQ(gate.y, through_cpp(gate));
  gate.x[0] += 1;
  ASSERT_EQ(sluice_replay(device.device, recording, launch.stream, error), SLUICE_OK) << error.str();
  EXPECT_EQ(gate.y, through_cpp(gate));
  sluice_recording_destroy(recording);

  step.answer = SLUICE_CORRUPT;
  recording = nullptr;
  EXPECT_EQ(sluice_record(device.device, launch.stream, enqueue, &step, &recording, error), SLUICE_CORRUPT);
  EXPECT_EQ(error.str(), "record: the callback returned 'corrupt data'");
  EXPECT_EQ(recording, nullptr);
  EXPECT_EQ(sluice_plan_run(plan.plan, &launch, error), SLUICE_OK) << "the stream must no longer record";
}

TEST(Capi, MemoryIsAlignedAndCopied) {
  CapiDevice device;
  Message error;
  void* memory = nullptr;
  ASSERT_EQ(sluice_allocate(device.device, 100, &memory, error), SLUICE_OK) << error.str();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 256, 0u);
  ASSERT_EQ(sluice_copy(device.device, memory, "hello", 6, device.stream(), error), SLUICE_OK);
  char back[6] = "";
  ASSERT_EQ(sluice_copy(device.device, back, memory, 6, device.stream(), error), SLUICE_OK);
  ASSERT_EQ(sluice_wait(device.device, device.stream(), error), SLUICE_OK);
  EXPECT_STREQ(back, "hello");
  sluice_release(device.device, memory);
  EXPECT_EQ(sluice_allocate(device.device, SIZE_MAX - 8, &memory, error), SLUICE_OUT_OF_MEMORY);
  EXPECT_NE(error.str().find("bytes"), std::string::npos) << error.str();
}

TEST(Capi, TheLogGetsALineWhenADeviceOpens) {
  std::string lines;
  sluice_device_options options = SLUICE_DEVICE_OPTIONS_INIT;
  options.threads = 1;
  options.log = [](void* context, int, const char* line) { *static_cast<std::string*>(context) += line; };
  options.log_context = &lines;
  sluice_device* device = nullptr;
  ASSERT_EQ(sluice_open(&options, &device, nullptr), SLUICE_OK);
  EXPECT_NE(lines.find(sluice_device_text(device)), std::string::npos) << lines;
  EXPECT_NE(std::string(sluice_device_text(device)).find("1 thread"), std::string::npos);
  sluice_close(device);
}

TEST(Capi, ExplainAnswersWithoutADevice) {
  char buffer[8192];
  sluice_text out{buffer, sizeof buffer, 0};
  Message error;
  sluice_question question{"router_gemm", "tokens=1 bias=1", "h200", nullptr, nullptr};
  ASSERT_EQ(sluice_explain(&question, &out, error), SLUICE_OK) << error.str();
  EXPECT_NE(std::string(buffer).find("->"), std::string::npos);
  EXPECT_NE(std::string(buffer).find("h200 (sm90, 132 SMs)"), std::string::npos) << buffer;
  EXPECT_EQ(out.needed, std::strlen(buffer) + 1);

  const sluice_policy force{"cpu.router_gemm.dot", 0};
  question.policy = &force;
  EXPECT_EQ(sluice_explain(&question, &out, error), SLUICE_UNSUPPORTED) << "the device is of another backend";
  EXPECT_NE(std::string(buffer).find("!! no kernel supports this problem"), std::string::npos) << buffer;

  CapiDevice device;
  question.device_name = nullptr;
  question.device = device.device;
  ASSERT_EQ(sluice_explain(&question, &out, error), SLUICE_OK) << error.str();
  EXPECT_NE(std::string(buffer).find(sluice_device_text(device.device)), std::string::npos) << buffer;
}

TEST(Capi, OperationsFieldsAndTensorsAreListed) {
  const std::vector<std::string> names = op_names();
  ASSERT_EQ(sluice_op_count(), names.size());
  for (size_t i = 0; i < names.size(); ++i) EXPECT_EQ(sluice_op_name(i), names[i]);
  EXPECT_EQ(sluice_op_name(names.size()), nullptr);

  std::map<std::string, std::string> fields;
  ASSERT_EQ(sluice_op_fields(
                "router_gemm",
                [](void* context, const sluice_field* f) {
                  (*static_cast<std::map<std::string, std::string>*>(context))[f->name] =
                      std::string(f->value) + "/" + std::to_string(f->word_count);
                },
                &fields, nullptr),
            SLUICE_OK);
  EXPECT_EQ(fields["hidden"], "2880/0");
  EXPECT_EQ(fields["x"], "bf16/9");
  EXPECT_EQ(fields["bias"], "0/2");

  std::map<std::string, sluice_slot> slots;
  ASSERT_EQ(sluice_op_tensors(
                "router_gemm", CapiGate::kProblem,
                [](void* context, const sluice_slot* s) {
                  (*static_cast<std::map<std::string, sluice_slot>*>(context))[s->name] = *s;
                },
                &slots, nullptr),
            SLUICE_OK);
  ASSERT_EQ(slots.size(), 4u);
  EXPECT_EQ(slots["y"].role, SLUICE_OUT);
  EXPECT_EQ(slots["y"].shape[0], 3);
  EXPECT_EQ(slots["y"].shape[1], 5);
  EXPECT_EQ(slots["y"].dtype, SLUICE_F32);
  EXPECT_EQ(slots["y"].rows_may_be_strided, 1);
  EXPECT_EQ(slots["bias"].used, 1);
  EXPECT_EQ(slots["w"].rows_may_be_strided, 0);
}

TEST(Capi, VersionAndStatusHaveWords) {
  const std::string want = std::to_string(SLUICE_VERSION_MAJOR) + "." + std::to_string(SLUICE_VERSION_MINOR) +
                           "." + std::to_string(SLUICE_VERSION_PATCH);
  EXPECT_EQ(sluice_version(), want);
  EXPECT_STREQ(sluice_status_text(SLUICE_OUT_OF_MEMORY), "out of memory");
  EXPECT_STREQ(sluice_status_text(99), "unknown");
}

}  // namespace
}  // namespace sluice::test
