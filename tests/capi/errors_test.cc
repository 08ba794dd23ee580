// Every wrong use returns its status and a message that names the error.
#include <climits>
#include <cstdint>
#include <cstring>
#include <new>
#include <stdexcept>

#include "capi/support.h"

namespace sluice::test {
namespace {

class CapiErrors : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(sluice_plan_create(device_.device, "router_gemm", CapiGate::kProblem, nullptr, &plan_, nullptr),
              SLUICE_OK);
  }
  void TearDown() override { sluice_plan_destroy(plan_); }

  void expect(sluice_status got, sluice_status want, const std::string& part) {
    EXPECT_EQ(got, want) << error_.str();
    EXPECT_NE(error_.str().find(part), std::string::npos) << "wanted '" << part << "' in: " << error_.str();
    error_.data[0] = '\0';
  }
  // Creates a plan that must be rejected.
  void expect_no_plan(const char* op, const char* problem, const sluice_policy* policy, sluice_status want,
                      const std::string& part) {
    sluice_plan* plan = nullptr;
    Message error;
    EXPECT_EQ(sluice_plan_create(device_.device, op, problem, policy, &plan, error), want) << error.str();
    EXPECT_NE(error.str().find(part), std::string::npos) << "wanted '" << part << "' in: " << error.str();
    EXPECT_EQ(plan, nullptr);
  }
  // Runs the gate after `spoil` has made the call invalid; nothing may be written.
  template <class Spoil>
  void expect_refused(const std::string& part, Spoil spoil) {
    CapiGate gate;
    sluice_launch launch = gate.launch(device_, sluice_plan_workspace_bytes(plan_));
    spoil(gate, launch);
    Message error;
    EXPECT_EQ(sluice_plan_run(plan_, &launch, error), SLUICE_INVALID_ARGUMENT) << part;
    EXPECT_NE(error.str().find(part), std::string::npos) << "wanted '" << part << "' in: " << error.str();
    EXPECT_EQ(gate.y, std::vector<float>(15, -1.f)) << part;
  }
  CapiDevice device_;
  sluice_plan* plan_ = nullptr;
  Message error_;
};

TEST_F(CapiErrors, NamesThatDoNotExist) {
  expect_no_plan("router_gem", "", nullptr, SLUICE_INVALID_ARGUMENT, "did you mean 'router_gemm'?");
  expect_no_plan("router_gemm", "token=1", nullptr, SLUICE_INVALID_ARGUMENT,
                 "unknown field 'token'; did you mean 'tokens'?");
  expect_no_plan("router_gemm", "tokens=one", nullptr, SLUICE_INVALID_ARGUMENT,
                 "tokens: wanted an integer, found 'one'");
  expect_no_plan("router_gemm", "x=bf17", nullptr, SLUICE_INVALID_ARGUMENT, "'bf17'");
  expect_no_plan("router_gemm", "experts=0 tokens=-1", nullptr, SLUICE_INVALID_ARGUMENT, "experts=0");
  const sluice_policy unknown{"cpu.router_gemm.none", 0};
  expect_no_plan("router_gemm", "", &unknown, SLUICE_INVALID_ARGUMENT, "cpu.router_gemm.none");
}

TEST_F(CapiErrors, KernelsThatRefuse) {
  // The planned kernels belong to another backend, so the CPU device does not know them.
  const sluice_policy planned{"cuda.router_gemm.splitk_sm90", 0};
  expect_no_plan("router_gemm", "", &planned, SLUICE_INVALID_ARGUMENT, "policy.force");
}

TEST_F(CapiErrors, TensorsThatDoNotFit) {
  expect_refused("unknown tensor 'z'", [](CapiGate& g, sluice_launch&) { g.args[0].name = "z"; });
  expect_refused("did you mean 'bias'?", [](CapiGate& g, sluice_launch&) { g.args[0].name = "bais"; });
  expect_refused("w: given twice", [](CapiGate& g, sluice_launch&) { g.args[0].name = "w"; });
  expect_refused("x: missing: wanted f32[3, 7]", [](CapiGate&, sluice_launch& l) { --l.arg_count; });
  expect_refused("x: shape: wanted f32[3, 7], found f32[2, 7]",
                 [](CapiGate& g, sluice_launch&) { g.at("x").shape[0] = 2; });
  expect_refused("w: dtype: wanted f32[5, 7]",
                 [](CapiGate& g, sluice_launch&) { g.at("w").dtype = SLUICE_BF16; });
  expect_refused("y: null pointer", [](CapiGate& g, sluice_launch&) { g.at("y").data = nullptr; });
  expect_refused("bias: rank", [](CapiGate& g, sluice_launch&) { g.at("bias").rank = 2; });
  expect_refused("w: strides", [](CapiGate& g, sluice_launch&) { g.at("w").stride[0] = 8; });
  expect_refused("x: wanted memory of cpu, found cuda",
                 [](CapiGate& g, sluice_launch&) { g.at("x").where = SLUICE_CUDA; });
  expect_refused("x: wanted a pointer aligned to 4 bytes", [](CapiGate& g, sluice_launch&) {
    g.at("x").data = static_cast<char*>(g.at("x").data) + 1;
  });
}

TEST_F(CapiErrors, NumbersThatAreNoEnumerators) {
  expect_refused("x: dtype: wanted a sluice_dtype, found 42",
                 [](CapiGate& g, sluice_launch&) { g.at("x").dtype = 42; });
  expect_refused("x: where: wanted a sluice_backend, found 7",
                 [](CapiGate& g, sluice_launch&) { g.at("x").where = 7; });
  expect_refused("x: rank: wanted 0 to 4, found 5", [](CapiGate& g, sluice_launch&) { g.at("x").rank = 5; });
  expect_refused("x: rank: wanted 0 to 4, found -1",
                 [](CapiGate& g, sluice_launch&) { g.at("x").rank = -1; });
}

TEST_F(CapiErrors, LaunchesThatAreIncomplete) {
  expect_refused("args: wanted a pointer", [](CapiGate&, sluice_launch& l) { l.args = nullptr; });
  expect_refused("args[1].name", [](CapiGate& g, sluice_launch&) { g.args[1].name = nullptr; });
  expect_refused("arg_count: wanted at most 32", [](CapiGate&, sluice_launch& l) { l.arg_count = 33; });
  expect_refused("stream", [](CapiGate&, sluice_launch& l) { l.stream.native = nullptr; });
  expect_refused("stream", [](CapiGate&, sluice_launch& l) { l.stream.backend = SLUICE_CUDA; });
}

TEST_F(CapiErrors, DevicesThatAreNotThere) {
  sluice_device* device = nullptr;
  sluice_device_options options = SLUICE_DEVICE_OPTIONS_INIT;
  options.backend = SLUICE_CUDA;
  options.index = 4096;  // no machine has this many GPUs
  expect(sluice_open(&options, &device, error_), SLUICE_UNSUPPORTED, "cuda: wanted ");
  options.backend = 9;
  expect(sluice_open(&options, &device, error_), SLUICE_INVALID_ARGUMENT, "backend");
  options.backend = SLUICE_CPU;
  expect(sluice_open(&options, &device, error_), SLUICE_INVALID_ARGUMENT, "index: wanted 0");
  options.index = 0;
  options.threads = -1;
  expect(sluice_open(&options, &device, error_), SLUICE_INVALID_ARGUMENT, "threads");
  EXPECT_EQ(device, nullptr);
}

// A struct of a later header version, as this version sees it.
struct LaterOptions {
  sluice_device_options known = SLUICE_DEVICE_OPTIONS_INIT;
  int64_t later = 0;
};

TEST_F(CapiErrors, StructsOfOtherVersions) {
  sluice_device* device = nullptr;
  LaterOptions options;
  options.known.size = sizeof options;
  EXPECT_EQ(sluice_open(&options.known, &device, error_), SLUICE_OK) << error_.str();
  sluice_close(device);
  device = nullptr;
  options.later = 1;
  expect(sluice_open(&options.known, &device, error_), SLUICE_INVALID_ARGUMENT, "a later version at byte");
  for (const size_t size : {size_t{0}, sizeof options.known - 1, SIZE_MAX}) {
    options.known.size = size;
    expect(sluice_open(&options.known, &device, error_), SLUICE_INVALID_ARGUMENT, "options.size: wanted");
  }
  EXPECT_EQ(device, nullptr);
}

TEST_F(CapiErrors, StreamsThatCannotBeWrapped) {
  sluice_stream stream{SLUICE_CPU, nullptr};
  expect(sluice_stream_wrap(nullptr, nullptr, &stream, error_), SLUICE_INVALID_ARGUMENT, "device");
  expect(sluice_stream_wrap(device_.device, nullptr, nullptr, error_), SLUICE_INVALID_ARGUMENT, "out");
  int mine = 0;
  expect(sluice_stream_wrap(device_.device, &mine, &stream, error_), SLUICE_INVALID_ARGUMENT,
         "cpu: wrap: wanted null");
  EXPECT_EQ(stream.native, nullptr);
  EXPECT_EQ(sluice_stream_wrap(device_.device, nullptr, &stream, error_), SLUICE_OK) << error_.str();
  EXPECT_EQ(stream.native, device_.stream().native);
  expect(sluice_stream_retarget(device_.device, stream, &mine, error_), SLUICE_INVALID_ARGUMENT,
         "cpu: retarget: wanted null");
  expect(sluice_stream_retarget(nullptr, stream, nullptr, error_), SLUICE_INVALID_ARGUMENT, "device");
  EXPECT_EQ(sluice_stream_retarget(device_.device, stream, nullptr, error_), SLUICE_OK) << error_.str();
  sluice_stream_unwrap(device_.device, stream);
  sluice_stream_unwrap(nullptr, stream);
  EXPECT_EQ(sluice_wait(device_.device, stream, error_), SLUICE_OK)
      << "the device's own stream remains valid";
}

TEST_F(CapiErrors, QuestionsThatCannotBeAnswered) {
  char buffer[8192];
  sluice_text out{buffer, sizeof buffer, 0};
  sluice_question q{"router_gemm", "tokens=1", "h201", nullptr, nullptr};
  expect(sluice_explain(&q, &out, error_), SLUICE_INVALID_ARGUMENT, "'h201'");
  q.device_name = nullptr;
  expect(sluice_explain(&q, &out, error_), SLUICE_INVALID_ARGUMENT, "neither");
  q.device_name = "h200";
  q.device = device_.device;
  expect(sluice_explain(&q, &out, error_), SLUICE_INVALID_ARGUMENT, "both");
  q.device = nullptr;
  q.op = nullptr;
  expect(sluice_explain(&q, &out, error_), SLUICE_INVALID_ARGUMENT, "op: wanted a pointer");
  q.op = "router_gemm";
  q.problem = "tokens=-1";
  expect(sluice_explain(&q, &out, error_), SLUICE_INVALID_ARGUMENT, "tokens=-1");
  EXPECT_NE(std::string(buffer).find("!! the contract"), std::string::npos) << buffer;
}

TEST_F(CapiErrors, BuffersThatAreTooShort) {
  const sluice_question q{"router_gemm", "tokens=1", "h200", nullptr, nullptr};
  char small[10];
  std::memset(small, 'x', sizeof small);
  sluice_text out{small, sizeof small, 0};
  expect(sluice_explain(&q, &out, error_), SLUICE_INVALID_ARGUMENT, "found a buffer of 10");
  EXPECT_EQ(small[9], '\0');
  EXPECT_EQ(std::string(small), "problem  ");
  EXPECT_GT(out.needed, sizeof small);
  std::vector<char> exact(out.needed);
  sluice_text enough{exact.data(), exact.size(), 0};
  EXPECT_EQ(sluice_explain(&q, &enough, error_), SLUICE_OK) << error_.str();
  sluice_text none{nullptr, 0, 0};
  expect(sluice_explain(&q, &none, error_), SLUICE_INVALID_ARGUMENT, "out: wanted a buffer of");
  EXPECT_EQ(none.needed, exact.size());

  char words[8];
  sluice_text brief{words, sizeof words, 0};
  sluice_plan* plan = nullptr;
  EXPECT_EQ(sluice_plan_create(device_.device, "nothing_like_it", "", nullptr, &plan, &brief),
            SLUICE_INVALID_ARGUMENT);
  EXPECT_STREQ(words, "unknown");
  EXPECT_GT(brief.needed, sizeof words);
}

// For every operation, a bound that would take too long to plan is rejected.
TEST_F(CapiErrors, AHugeBoundOfATableIsRefusedAtOnce) {
  for (size_t i = 0; i < sluice_op_count(); ++i) {
    sluice_table* table = nullptr;
    for (const int64_t tokens : {INT64_MAX, int64_t{1'000'000'000'000}}) {
      expect(sluice_table_create(device_.device, sluice_op_name(i), "", tokens, nullptr, &table, error_),
             SLUICE_INVALID_ARGUMENT, "tokens_max: wanted 0 to 16777216, found " + std::to_string(tokens));
      EXPECT_EQ(table, nullptr) << sluice_op_name(i);
    }
  }
}

TEST_F(CapiErrors, NullPointersAreNamed) {
  sluice_plan* plan = nullptr;
  sluice_table* table = nullptr;
  sluice_recording* recording = nullptr;
  void* memory = nullptr;
  CapiGate gate;
  const sluice_launch launch = gate.launch(device_, 0);
  const auto bad = SLUICE_INVALID_ARGUMENT;
  expect(sluice_open(nullptr, nullptr, error_), bad, "out");
  expect(sluice_plan_create(nullptr, "router_gemm", "", nullptr, &plan, error_), bad, "device");
  expect(sluice_plan_create(device_.device, nullptr, "", nullptr, &plan, error_), bad, "op");
  expect(sluice_plan_create(device_.device, "router_gemm", "", nullptr, nullptr, error_), bad, "out");
  expect(sluice_plan_run(nullptr, &launch, error_), bad, "plan");
  expect(sluice_plan_run(plan_, nullptr, error_), bad, "launch");
  expect(sluice_table_create(nullptr, "router_gemm", "", 1, nullptr, &table, error_), bad, "device");
  expect(sluice_table_create(device_.device, "router_gemm", "", 1, nullptr, nullptr, error_), bad, "out");
  expect(sluice_table_create(device_.device, "router_gemm", "", -1, nullptr, &table, error_), bad,
         "tokens_max");
  expect(sluice_table_run(nullptr, 1, &launch, error_), bad, "table");
  expect(sluice_table_step(nullptr, 0, nullptr, error_), bad, "table");
  expect(sluice_allocate(nullptr, 1, &memory, error_), bad, "device");
  expect(sluice_allocate(device_.device, 1, nullptr, error_), bad, "out");
  expect(sluice_copy(nullptr, &memory, &memory, 1, launch.stream, error_), bad, "device");
  expect(sluice_copy(device_.device, nullptr, &memory, 1, launch.stream, error_), bad, "to");
  expect(sluice_copy(device_.device, &memory, nullptr, 1, launch.stream, error_), bad, "from");
  expect(sluice_wait(device_.device, {SLUICE_CPU, nullptr}, error_), bad, "stream");
  expect(sluice_wait(device_.device, {SLUICE_CUDA, &memory}, error_), bad, "stream: wanted a stream of cpu");
  expect(sluice_record(device_.device, launch.stream, nullptr, nullptr, &recording, error_), bad, "enqueue");
  expect(sluice_replay(device_.device, nullptr, launch.stream, error_), bad, "recording");
  expect(sluice_explain(nullptr, nullptr, error_), bad, "question");
  expect(sluice_op_fields("router_gemm", nullptr, nullptr, error_), bad, "visit");
  expect(sluice_op_tensors(
             nullptr, "", [](void*, const sluice_slot*) {}, nullptr, error_),
         bad, "op");
  EXPECT_EQ(sluice_plan_run(nullptr, &launch, nullptr), bad) << "the message buffer is optional";
}

TEST_F(CapiErrors, ExceptionsOfCallbacksBecomeErrors) {
  sluice_recording* recording = nullptr;
  const auto record = [&](sluice_enqueue enqueue) {
    return sluice_record(device_.device, device_.stream(), enqueue, nullptr, &recording, error_);
  };
  expect(record([](void*) -> sluice_status { throw std::runtime_error("lost"); }), SLUICE_DEVICE, "lost");
  expect(record([](void*) -> sluice_status { throw 7; }), SLUICE_DEVICE, "unknown type");
  expect(record([](void*) -> sluice_status { throw std::bad_alloc(); }), SLUICE_OUT_OF_MEMORY, "memory");
  EXPECT_EQ(recording, nullptr);
  expect(sluice_op_fields(
             "router_gemm", [](void*, const sluice_field*) { throw 7; }, nullptr, error_),
         SLUICE_DEVICE, "unknown type");
}

// Other languages' integers are wider than the enum's eight bits, so callbacks can return any number.
TEST_F(CapiErrors, CallbacksThatReturnAnInvalidStatusFail) {
  static int32_t returned;
  int32_t (*const enqueue)(void*) = [](void*) { return returned; };
  sluice_recording* recording = nullptr;
  for (const int32_t number : {256, 65536, 7, -1, INT32_MIN, INT32_MAX}) {
    returned = number;
    expect(sluice_record(device_.device, device_.stream(), reinterpret_cast<sluice_enqueue>(enqueue), nullptr,
                         &recording, error_),
           SLUICE_INVALID_ARGUMENT,
           "record: the callback returned " + std::to_string(number) + ", which is not a sluice_status");
    EXPECT_EQ(recording, nullptr);
  }
}

TEST_F(CapiErrors, ReleasingNothingDoesNothing) {
  sluice_close(nullptr);
  sluice_plan_destroy(nullptr);
  sluice_table_destroy(nullptr);
  sluice_recording_destroy(nullptr);
  sluice_release(device_.device, nullptr);
  sluice_release(nullptr, nullptr);
  EXPECT_STREQ(sluice_plan_kernel(nullptr), "");
  EXPECT_STREQ(sluice_device_text(nullptr), "");
  EXPECT_EQ(sluice_plan_workspace_bytes(nullptr), 0u);
  EXPECT_EQ(sluice_table_step_count(nullptr), 0u);
  EXPECT_EQ(sluice_device_stream(nullptr).native, nullptr);
}

}  // namespace
}  // namespace sluice::test
