// Calls with errors that C programs make.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <span>

#include "capi/support.h"

namespace sluice::test {
namespace {

constexpr size_t kGuard = 1 << 20;

// A problem with all its tensors, filled with zeros except where sequences need values.
class AnyCall {
 public:
  AnyCall(const CapiDevice& planned_for, const char* op, const char* problem, const char* kernel = nullptr) {
    Message error;
    const sluice_policy policy{kernel, 0};
    EXPECT_EQ(sluice_plan_create(planned_for.device, op, problem, &policy, &plan_, error), SLUICE_OK)
        << error.str();
    EXPECT_EQ(sluice_op_tensors(op, problem, add, this, error), SLUICE_OK) << error.str();
    for (const std::string& name : names_) args_.push_back({name.c_str(), tensors_.at(name)});
    workspace_.assign(sluice_plan_workspace_bytes(plan_) + kGuard + 256, '\x5a');
  }
  ~AnyCall() {
    sluice_plan_destroy(plan_);
    for (auto& [name, tensor] : tensors_) std::free(tensor.data);
  }
  void set(const std::string& tensor, const std::vector<int32_t>& values) {
    std::memcpy(tensors_.at(tensor).data, values.data(), values.size() * sizeof(int32_t));
  }
  sluice_status run(sluice_stream stream, sluice_text* error) const {
    const sluice_launch launch{args_.data(), args_.size(), aligned(workspace_.data()),
                               sluice_plan_workspace_bytes(plan_), stream};
    return sluice_plan_run(plan_, &launch, error);
  }
  bool guard_intact() const {
    const char* end = workspace_.data() + workspace_.size();
    const char* guard = aligned(workspace_.data()) + sluice_plan_workspace_bytes(plan_);
    return std::all_of(guard, end, [](char byte) { return byte == '\x5a'; });
  }

 private:
  static void add(void* context, const sluice_slot* slot) {
    if (!slot->used) return;
    auto* mine = static_cast<AnyCall*>(context);
    size_t elements = 1;
    for (int32_t i = 0; i < slot->rank; ++i) elements *= static_cast<size_t>(slot->shape[i]);
    void* data = std::calloc(elements, 8);
    mine->names_.emplace_back(slot->name);
    mine->tensors_[slot->name] = sluice_contiguous(data, slot->dtype, slot->rank, slot->shape);
  }
  sluice_plan* plan_ = nullptr;
  std::vector<std::string> names_;
  std::map<std::string, sluice_tensor> tensors_;
  std::vector<sluice_arg> args_;
  mutable std::vector<char> workspace_;
};

struct Case {
  const char *op, *problem;
  std::map<std::string, std::vector<int32_t>> inputs;
  const char* kernel = nullptr;
};
const Case kCases[] = {
    {"attention",
     "tokens=64 heads=8 kv_heads=2 head_dim=64 pages=64 pages_per_seq=64 q=f32",
     {{"q_begin", {0, 64}}, {"kv_len", {64}}}},
    {"latent_attention",
     "tokens=64 heads=8 pages=64 pages_per_seq=64",
     {{"q_begin", {0, 64}}, {"kv_len", {64}}}},
    {"sample", "rows=32 vocab=5000", {}},
    {"top_logprobs", "rows=32 logit_rows=32 vocab=5000", {}},
};
// AMX kernels, tested on processors with AMX.
const Case kTileCases[] = {
    {"linear", "tokens=256 features=512 width=256 layout=panels16", {}, "cpu.linear.bf16_amx"},
    {"expert_gemm",
     "rows=256 experts=2 features=512 width=256 w=bf16",
     {{"row_begin", {0, 128, 256}}, {"row_count", {128, 128}}},
     "cpu.expert_gemm.bf16_amx"},
    {"expert_gemm",
     "rows=256 experts=2 features=512 width=256",
     {{"row_begin", {0, 128, 256}}, {"row_count", {128, 128}}},
     "cpu.expert_gemm.mxfp4_amx"},
};

// The reason why AMX cases do not run here; empty if they do.
std::string no_tiles() {
  const CapiDevice device(1);
  sluice_plan* plan = nullptr;
  Message error;
  const sluice_policy policy{kTileCases[0].kernel, 0};
  const sluice_status status =
      sluice_plan_create(device.device, kTileCases[0].op, kTileCases[0].problem, &policy, &plan, error);
  sluice_plan_destroy(plan);
  if (status == SLUICE_OK) return "";
  EXPECT_EQ(status, SLUICE_UNSUPPORTED) << error.str();
  EXPECT_NE(error.str().find("amx_bf16 (the kernel uses these instructions)"), std::string::npos)
      << error.str();
  return std::string("wanted a processor with amx_bf16, found ") + sluice_device_text(device.device);
}

// A plan fixes the number of threads, because each thread has scratch memory of its own.
void refuse_streams_of_more_threads(std::span<const Case> cases) {
  const CapiDevice one(1), eight(8);
  for (const Case& c : cases) {
    AnyCall call(one, c.op, c.problem, c.kernel);
    for (const auto& [name, values] : c.inputs) call.set(name, values);
    Message error;
    EXPECT_EQ(call.run(eight.stream(), error), SLUICE_INVALID_ARGUMENT) << c.op;
    EXPECT_NE(error.str().find("stream: wanted a stream of the plan's device"), std::string::npos)
        << c.op << ": " << error.str();
    EXPECT_TRUE(call.guard_intact()) << c.op;
    EXPECT_EQ(call.run(one.stream(), error), SLUICE_OK) << c.op << ": " << error.str();
    // Scratch memory for more threads also serves fewer threads.
    AnyCall large(eight, c.op, c.problem, c.kernel);
    for (const auto& [name, values] : c.inputs) large.set(name, values);
    EXPECT_EQ(large.run(one.stream(), error), SLUICE_OK) << c.op << ": " << error.str();
  }
}

// A recording keeps its workspace: on a device with more threads, only as many run as have scratch memory.
void stay_in_the_workspace_of_a_recording(std::span<const Case> cases) {
  const CapiDevice one(1), eight(8);
  for (const Case& c : cases) {
    AnyCall call(one, c.op, c.problem, c.kernel);
    for (const auto& [name, values] : c.inputs) call.set(name, values);
    struct Both {
      const AnyCall* call;
      sluice_stream stream;
    } both{&call, one.stream()};
    sluice_recording* recording = nullptr;
    Message error;
    ASSERT_EQ(sluice_record(
                  one.device, one.stream(),
                  [](void* context) {
                    const auto* b = static_cast<Both*>(context);
                    return b->call->run(b->stream, nullptr);
                  },
                  &both, &recording, error),
              SLUICE_OK)
        << error.str();
    for (int i = 0; i < 20; ++i)
      EXPECT_EQ(sluice_replay(eight.device, recording, eight.stream(), error), SLUICE_OK) << error.str();
    EXPECT_TRUE(call.guard_intact()) << c.op;
    sluice_recording_destroy(recording);
  }
}

}  // namespace

TEST(CapiHostile, APlanRefusesTheStreamOfADeviceWithMoreThreads) { refuse_streams_of_more_threads(kCases); }
TEST(CapiHostile, ARecordingStaysInItsWorkspaceOnAnotherDevice) {
  stay_in_the_workspace_of_a_recording(kCases);
}
TEST(CapiHostile, TilesRefuseTheStreamOfADeviceWithMoreThreads) {
  if (const std::string why = no_tiles(); !why.empty()) GTEST_SKIP() << why;
  refuse_streams_of_more_threads(kTileCases);
}
TEST(CapiHostile, ARecordingOfTilesStaysInItsWorkspaceOnAnotherDevice) {
  if (const std::string why = no_tiles(); !why.empty()) GTEST_SKIP() << why;
  stay_in_the_workspace_of_a_recording(kTileCases);
}

TEST(CapiHostile, StreamsOfNoBackend) {
  const CapiDevice device;
  const AnyCall call(device, "sample", "rows=2 vocab=100");
  sluice_stream stream = device.stream();
  stream.backend = 9;
  const std::string wanted = "stream: backend: wanted a sluice_backend, found 9";
  Message error;
  EXPECT_EQ(call.run(stream, error), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(error.str(), wanted);
  char bytes[2] = "";
  EXPECT_EQ(sluice_copy(device.device, bytes, bytes + 1, 1, stream, error), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(error.str(), wanted);
  EXPECT_EQ(sluice_wait(device.device, stream, error), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(error.str(), wanted);
}

TEST(CapiHostile, StridesThatNoMemoryHas) {
  const CapiDevice device;
  sluice_plan* plan = nullptr;
  ASSERT_EQ(sluice_plan_create(device.device, "router_gemm", CapiGate::kProblem, nullptr, &plan, nullptr),
            SLUICE_OK);
  for (const int64_t stride : {INT64_MAX, INT64_MAX / 4, INT64_MAX / 2 + 1}) {
    CapiGate gate;
    gate.at("x").stride[0] = stride;
    const sluice_launch launch = gate.launch(device, sluice_plan_workspace_bytes(plan));
    Message error;
    EXPECT_EQ(sluice_plan_run(plan, &launch, error), SLUICE_INVALID_ARGUMENT) << stride;
    EXPECT_NE(error.str().find("x: strides"), std::string::npos) << error.str();
    EXPECT_NE(error.str().find("found strides [" + std::to_string(stride)), std::string::npos) << error.str();
  }
  sluice_plan_destroy(plan);
  const int64_t shape[] = {INT64_MAX, INT64_MAX, 3};
  EXPECT_EQ(sluice_contiguous(nullptr, SLUICE_F32, 3, shape).stride[0], INT64_MAX);
}

TEST(CapiHostile, FieldsThatCannotBe) {
  const CapiDevice device;
  const auto refused = [&](const char* op, const char* problem) {
    sluice_plan* plan = nullptr;
    Message error;
    EXPECT_EQ(sluice_plan_create(device.device, op, problem, nullptr, &plan, error), SLUICE_INVALID_ARGUMENT)
        << op << " " << problem;
    EXPECT_EQ(plan, nullptr);
    sluice_plan_destroy(plan);
    return error.str();
  };
  EXPECT_EQ(refused("router_gemm", "tokens=1 tokens=2"), "router_gemm: tokens: given twice");
  EXPECT_NE(refused("combine", "experts=-5").find("experts=-5"), std::string::npos);
  for (const char* field : {"topk_groups", "expert_begin", "expert_count", "vocab"})
    EXPECT_NE(refused("route_topk", (std::string(field) + "=-5").c_str()).find(std::string(field) + "=-5"),
              std::string::npos);
}

// Tries every integer of every operation: problems that the contract accepts must not have tensors of negative
// size.
TEST(CapiHostile, NoTensorHasANegativeSize) {
  const auto visit = [](void* context, const sluice_slot* slot) {
    for (int32_t i = 0; i < slot->rank; ++i)
      *static_cast<bool*>(context) &= !slot->used || slot->shape[i] >= 0;
  };
  int refused = 0;
  for (size_t i = 0; i < sluice_op_count(); ++i) {
    const std::string op = sluice_op_name(i);
    std::vector<std::string> integers;
    const auto add = [](void* context, const sluice_field* field) {
      if (field->word_count == 0) static_cast<std::vector<std::string>*>(context)->emplace_back(field->name);
    };
    ASSERT_EQ(sluice_op_fields(op.c_str(), add, &integers, nullptr), SLUICE_OK);
    for (const std::string& field : integers)
      for (const char* value : {"-1", "-9223372036854775808", "9223372036854775807"}) {
        Message error;
        bool sound = true;
        const std::string problem = field + "=" + value;
        refused += sluice_op_tensors(op.c_str(), problem.c_str(), visit, &sound, error) != SLUICE_OK;
        EXPECT_TRUE(sound) << op << " " << problem;
      }
  }
  EXPECT_GT(refused, 200);
  Message error;
  bool sound = true;
  EXPECT_EQ(sluice_op_tensors("router_gemm", "tokens=-3", visit, &sound, error), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(error.str(), "router_gemm: needs tokens from 0 to 16384; tokens=-3");
}

TEST(CapiHostile, NumbersThatNoFormulaTakes) {
  const CapiDevice device;
  for (const char* op : {"expert_gemm", "expert_mlp", "grouped_mlp"})
    for (const char* problem : {"alpha=nan", "alpha=inf", "beta=inf", "beta=-inf", "alpha=1e999"}) {
      Message error;
      sluice_plan* plan = nullptr;
      EXPECT_EQ(sluice_plan_create(device.device, op, problem, nullptr, &plan, error),
                SLUICE_INVALID_ARGUMENT);
      EXPECT_NE(error.str().find("a finite number; "), std::string::npos) << op << ": " << error.str();
      sluice_plan_destroy(plan);
    }
}

TEST(CapiHostile, MessagesHoldNoTerminalControlCharacters) {
  const CapiDevice device;
  sluice_plan* plan = nullptr;
  Message error;
  EXPECT_EQ(sluice_plan_create(device.device, "router\x1b[31m\n", "", nullptr, &plan, error),
            SLUICE_INVALID_ARGUMENT);
  EXPECT_NE(error.str().find("'router\\x1b[31m\\n'"), std::string::npos) << error.str();
}

}  // namespace sluice::test
