// Runs every registered candidate on every case and compares the outputs with the reference. A new kernel is
// tested once it is registered.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "harness/count_from.h"
#include "harness/devices.h"
#include "harness/run_case.h"

namespace sluice::test {

template <class Op>
class Conformance : public ::testing::Test {
 protected:
  // The same case, with tensors that begin at odd addresses.
  static void odd_addresses(Device& device, const Case<Op>& test, const std::string& name, int seed) {
    HostArgs<Op> host(test.problem, Spread::kOddRows);
    Random random(static_cast<uint64_t>(seed));
    Suite<Op>::fill(test.problem, test.fill, host, random);
    const Expectations wanted = reference(test.problem, host.args());
    for (const Candidate<Op>* c : device.catalog().template table<Op>()) {
      if (!c->supports(test.problem, device.info()).accepted()) continue;
      run_odd(*c, device, test.problem, host, wanted, std::string(c->name) + ", " + name);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
};
TYPED_TEST_SUITE_P(Conformance);

// Checks that (a) every candidate accepts some case, (b) some candidate accepts each case on every device,
// and (c) all results are correct.
TYPED_TEST_P(Conformance, EveryCandidateOnEveryCase) {
  using Op = TypeParam;
  const auto devices = every_level(3);
  std::set<std::string_view> idle;
  for (const auto& device : devices)
    for (const Candidate<Op>* c : device->catalog().template table<Op>()) idle.insert(c->name);
  int index = 0;
  for (const Case<Op>& test : Suite<Op>::cases()) {
    const std::string name = std::string("case ") + std::to_string(index++) + " (" + test.why + "; " +
                             fields_text(test.problem) + ")";
    const Refusal contract = Op::validate(test.problem);
    ASSERT_TRUE(contract.accepted()) << name << ": " << contract.line();
    HostArgs<Op> host(test.problem, test.spread);
    Random random(static_cast<uint64_t>(index));
    Suite<Op>::fill(test.problem, test.fill, host, random);
    const Expectations wanted = reference(test.problem, host.args());
    expect_complete<Op>(test.problem, host.args(), wanted);
    for (const auto& device : devices) {
      bool accepted = false;
      for (const Candidate<Op>* c : device->catalog().template table<Op>()) {
        const Refusal refusal = c->supports(test.problem, device->info());
        if (!refusal.accepted()) continue;
        accepted = true;
        idle.erase(c->name);
        run_case(*c, *device, test.problem, host, wanted,
                 std::string(c->name) + " on " + text(device->info()) + ", " + name);
        if (this->HasFatalFailure()) return;
      }
      accepted |= run_by_stages<Op>(*device, test.problem, host, wanted, name);
      if (this->HasFatalFailure()) return;
      if (test.spread == Spread::kStridedRows) this->odd_addresses(*device, test, name, index);
      if (this->HasFatalFailure()) return;
      EXPECT_TRUE(accepted) << name << ": no candidate accepts it on " << text(device->info());
    }
  }
  // A candidate may need instructions that this machine lacks. The test names such candidates, so that they
  // do not pass silently.
  for (std::string_view name : idle) {
    bool could_run = false;
    for (const Candidate<Op>* c : cpu::catalog().template table<Op>())
      for (const Case<Op>& test : Suite<Op>::cases())
        if (c->name == name) could_run |= c->supports(test.problem, devices.back()->info()).accepted();
    EXPECT_FALSE(could_run) << name << " accepted no case";
    std::printf("[   note   ] %s: not run, because this machine lacks its instructions\n",
                std::string(name).c_str());
  }
}

// Every problem that validate() and supports() accept must pass, even if no case lists it.
// SLUICE_FUZZ_PROBLEMS and SLUICE_FUZZ_SEED set the number of problems and the seed.
TYPED_TEST_P(Conformance, FuzzedProblems) {
  using Op = TypeParam;
  const auto devices = every_level(2);
  const int problems = count_from("SLUICE_FUZZ_PROBLEMS", 60);
  Random random(static_cast<uint64_t>(count_from("SLUICE_FUZZ_SEED", 20)));
  int ran = 0;
  for (int round = 0; round < problems; ++round) {
    const typename Op::Problem problem = Suite<Op>::random(random);
    if (!Op::validate(problem).accepted()) continue;
    const auto fill = static_cast<Fill>(random.integer(0, static_cast<int64_t>(Fill::kSkewed)));
    const Spread even = coin(random) ? Spread::kStridedRows : Spread::kContiguous;
    const bool odd = round % 3 == 2;
    HostArgs<Op> host(problem, odd ? Spread::kOddRows : even);
    Suite<Op>::fill(problem, fill, host, random);
    const Expectations wanted = reference(problem, host.args());
    const std::string name = "round " + std::to_string(round) + " fill " +
                             std::to_string(static_cast<int>(fill)) + " (" + fields_text(problem) + ")";
    for (const auto& device : devices) {
      for (const Candidate<Op>* c : device->catalog().template table<Op>()) {
        if (!c->supports(problem, device->info()).accepted()) continue;
        ++ran;
        const std::string where = std::string(c->name) + " on " + text(device->info()) + ", " + name;
        if (odd) {
          run_odd(*c, *device, problem, host, wanted, where);
        } else {
          run_case(*c, *device, problem, host, wanted, where);
        }
        if (this->HasFatalFailure()) return;
      }
      if (!odd) ran += run_by_stages<Op>(*device, problem, host, wanted, name);
      if (this->HasFatalFailure()) return;
    }
  }
  EXPECT_GT(ran, 20) << "the fuzzer generates too few problems that a candidate accepts";
}

// The number of threads must not change the bits.
TYPED_TEST_P(Conformance, SameBitsOnAnyNumberOfThreads) {
  using Op = TypeParam;
  for (const Case<Op>& test : Suite<Op>::cases()) {
    std::vector<std::vector<std::byte>> images;
    for (int threads : {1, 2, 5}) {
      const auto device = cpu::open_device({.threads = threads}).value();
      HostArgs<Op> host(test.problem, Spread::kContiguous);
      Random random(7);
      Suite<Op>::fill(test.problem, test.fill, host, random);
      const auto plan = plan_op<Op>(*device, test.problem);
      ASSERT_TRUE(plan.ok()) << plan.status().message;
      void* scratch = device->allocate(plan.value().workspace_bytes()).value();
      const Workspace workspace{static_cast<std::byte*>(scratch), plan.value().workspace_bytes()};
      ASSERT_TRUE(plan.value().run(host.args(), workspace, device->stream()).ok());
      std::vector<std::byte> image;
      for (auto& e : host.tensors())
        image.insert(image.end(), e.memory->start(), e.memory->start() + e.memory->total_bytes());
      images.push_back(std::move(image));
      device->release(scratch);
    }
    EXPECT_TRUE(images[0] == images[1] && images[0] == images[2]) << test.why;
  }
}

// A wrong tensor is rejected before anything runs; the error names the tensor, the wanted property and the
// found one.
TYPED_TEST_P(Conformance, BadTensorsAreRefusedByName) {
  using Op = TypeParam;
  using Args = typename Op::Args;
  const auto device = cpu::open_device({.threads = 1}).value();
  for (const Case<Op>& test : Suite<Op>::cases()) {
    const auto plan = plan_op<Op>(*device, test.problem);
    ASSERT_TRUE(plan.ok()) << plan.status().message;
    HostArgs<Op> host(test.problem, Spread::kContiguous);
    std::vector<std::byte> scratch(plan.value().workspace_bytes() + 1);
    const auto refuses = [&](const Args& args, std::string_view slot, const char* how) {
      const Status status = plan.value().run(args, {scratch.data(), scratch.size()}, device->stream());
      EXPECT_EQ(status.code, Code::kInvalidArgument) << slot << ": " << how;
      EXPECT_NE(status.message.find(std::string(slot)), std::string::npos) << how << ": " << status.message;
    };
    Op::slots(test.problem, [&](const SlotSpec& spec, Tensor Args::*member) {
      const auto with = [&](auto change, const char* how) {
        Args args = host.args();
        change(args.*member);
        refuses(args, spec.name, how);
      };
      if (!spec.used)
        return with([&](Tensor& t) { t = make_tensor(scratch.data(), DType::kU8, {1}); }, "unused");
      with([](Tensor& t) { t.dtype = t.dtype == DType::kI16 ? DType::kU8 : DType::kI16; }, "dtype");
      with([](Tensor& t) { ++t.shape[0]; }, "shape");
      with([](Tensor& t) { t.rank = static_cast<int8_t>(t.rank - 1); }, "rank");
      if (elements_of(host.args().*member) == 0) return;
      with([](Tensor& t) { t.data = nullptr; }, "null pointer");
      with([](Tensor& t) { t.where = Backend::kCuda; }, "device");
      if (bits_of(spec.dtype) > 8) with([](Tensor& t) { t.data = t.template as<char>() + 1; }, "alignment");
      if (spec.rank >= 2 && spec.shape[1] > 1 && spec.shape[0] > 1)
        with([](Tensor& t) { t.stride[0] = t.stride[0] / 2; }, "strides");
    });
    if (plan.value().workspace_bytes() > 0) {
      const Status status = plan.value().run(host.args(), {scratch.data(), 0}, device->stream());
      EXPECT_NE(status.message.find("workspace"), std::string::npos) << status.message;
    }
  }
}

// Every field survives printing and parsing, and the error for an unknown field names the nearest field.
TYPED_TEST_P(Conformance, ProblemsReadBack) {
  using Op = TypeParam;
  for (const Case<Op>& test : Suite<Op>::cases()) {
    typename Op::Problem read{};
    ASSERT_TRUE(parse_fields(fields_text(test.problem), &read).ok());
    EXPECT_TRUE(read == test.problem) << fields_text(read) << " is not " << fields_text(test.problem);
  }
  typename Op::Problem problem{};
  std::string first;
  for_each_field(problem, [&](const Field& f) { first = first.empty() ? std::string(f.name) : first; });
  const Status status = set_field(problem, first + "x", "1");
  EXPECT_EQ(status.code, Code::kInvalidArgument);
  EXPECT_NE(status.message.find("'" + first + "'"), std::string::npos) << status.message;
}

REGISTER_TYPED_TEST_SUITE_P(Conformance, EveryCandidateOnEveryCase, FuzzedProblems,
                            SameBitsOnAnyNumberOfThreads, BadTensorsAreRefusedByName, ProblemsReadBack);

}  // namespace sluice::test
