// Runs a collective operation on every device of a group.
#pragma once
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "cases/all_reduce_norm.h"
#include "dispatch/group.h"
#include "harness/run_case.h"

namespace sluice::test {

// A problem on every device, each rank on a thread of its own. The stream and the weight are equal on all ranks.
class RanksRun {
 public:
  RanksRun(std::vector<Device*> devices, AllReduceNorm::Problem problem, Fill fill, Spread spread,
           uint64_t seed)
      : devices_(std::move(devices)), problem_(problem) {
    problem_.ranks = std::ssize(devices_);
    for (size_t r = 0; r < devices_.size(); ++r) {
      auto& host = hosts_.emplace_back(std::make_unique<HostArgs<AllReduceNorm>>(problem_, spread));
      Random random(seed + r);
      Suite<AllReduceNorm>::fill(problem_, fill, *host, random);
      if (r > 0) copy_from_first("stream", *host), copy_from_first("weight", *host);
      on_device_.push_back(std::make_unique<DeviceArgs<AllReduceNorm>>(*devices_[r], *host));
    }
  }

  // Runs the problem `times` times, each time with the stream as the previous run left it. `force`: as in Policy.
  std::vector<Status> run(const std::string& force, int times = 1) {
    std::vector<Status> out(devices_.size());
    for (size_t r = 0; r < devices_.size(); ++r) out[r] = on_device_[r]->upload(devices_[r]->stream());
    std::vector<std::thread> threads;
    for (size_t r = 0; r < devices_.size(); ++r)
      threads.emplace_back([&, r] {
        if (out[r].ok()) out[r] = run_rank(*devices_[r], *on_device_[r], force, times);
      });
    for (std::thread& thread : threads) thread.join();
    for (size_t r = 0; r < devices_.size(); ++r)
      if (out[r].ok()) out[r] = on_device_[r]->download(devices_[r]->stream());
    return out;
  }

  // One run: all ranks within the bounds, and with the same bits.
  void check(const std::string& force, const std::string& where) {
    std::vector<AllReduceNorm::Args> args;
    for (auto& host : hosts_) args.push_back(host->args());
    const Expectations wanted = reference_of_ranks(problem_, args);
    for (const Status& status : run(force)) ASSERT_TRUE(status.ok()) << where << ": " << status.message;
    HostArgs<AllReduceNorm>& first = *hosts_.front();
    for (const Expectations& list : {wanted, reference_given(problem_, first.args())})
      for (const Expected& want : list) expect_within(want, *first.find(want.slot), where);
    expect_equal_ranks(where);
  }
  void expect_equal_ranks(const std::string& where) {
    for (size_t r = 0; r < hosts_.size(); ++r)
      for (const auto& e : hosts_[r]->tensors()) {
        EXPECT_TRUE(e.memory->intact())
            << where << ": rank " << r << ": " << e.name << " was written outside";
        if (e.memory->role() == Role::kIn) continue;
        GuardedTensor& first = *hosts_.front()->find(e.name);
        EXPECT_EQ(std::memcmp(e.memory->start(), first.start(), static_cast<size_t>(first.total_bytes())), 0)
            << where << ": rank " << r << ": other bits than rank 0 in " << e.name;
      }
  }
  // The bytes of rank 0's outputs.
  std::vector<std::byte> outputs() {
    std::vector<std::byte> out;
    for (const auto& e : hosts_.front()->tensors())
      if (e.memory->role() != Role::kIn)
        out.insert(out.end(), e.memory->start(), e.memory->start() + e.memory->total_bytes());
    return out;
  }

 private:
  void copy_from_first(const char* name, HostArgs<AllReduceNorm>& to) {
    GuardedTensor *from = hosts_.front()->find(name), *into = to.find(name);
    if (from) std::memcpy(into->start(), from->start(), static_cast<size_t>(from->total_bytes()));
  }
  Status run_rank(Device& device, const DeviceArgs<AllReduceNorm>& args, const std::string& force,
                  int times) {
    const auto plan = make_plan<AllReduceNorm>(device, problem_, {.force = force});
    if (!plan.ok()) return plan.status();
    for (int i = 0; i < times; ++i) SLUICE_TRY(plan.value().run(args.args(), {}, device.stream()));
    return device.wait(device.stream());
  }

  std::vector<Device*> devices_;
  AllReduceNorm::Problem problem_;
  std::vector<std::unique_ptr<HostArgs<AllReduceNorm>>> hosts_;
  std::vector<std::unique_ptr<DeviceArgs<AllReduceNorm>>> on_device_;
};

// Problems around the sizes at which kernels divide rows and tokens differently.
inline std::vector<Case<AllReduceNorm>> ranks_cases() {
  std::vector<Case<AllReduceNorm>> out;
  for (const int64_t hidden : {2880, 2048})
    for (const int64_t tokens : {1, 2, 3, 7, 16, 64, 65, 128, 129, 256})
      out.push_back({{.tokens = tokens, .hidden = hidden}, "a decode step"});
  out.push_back({{.tokens = 1100, .hidden = 2880}, "more rows than lanes"});
  out.push_back({{.tokens = 5, .hidden = 8192, .x = DType::kF32}, "the widest row, in f32"});
  out.push_back({{.tokens = 70, .hidden = 264, .residual = false}, "no residual stream"});
  out.push_back({{.tokens = 70, .hidden = 264, .norm = false}, "no norm"});
  out.push_back({{.tokens = 0}, "no tokens"});
  out.push_back({{.tokens = 9, .hidden = 520}, "strided rows", Fill::kNormal, Spread::kStridedRows});
  for (const Fill fill : {Fill::kSomeNan, Fill::kInfinite, Fill::kTiny})
    out.push_back({{.tokens = 6, .hidden = 48}, "special values", fill});
  return out;
}

}  // namespace sluice::test
