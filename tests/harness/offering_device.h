// A device with a kernel for a fused operation of few tokens.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "dispatch/device.h"
#include "graph/run_plan.h"

namespace sluice::test {

// A CPU with a kernel for Fused, an operation of several stages. The kernel runs the stages. Its cost is
// nearly zero up to kOwnTokens tokens, and higher than every alternative beyond. `inner` must outlive the
// device.
template <class Fused>
class Offering final : public Device {
 public:
  using Problem = typename Fused::Problem;
  using Args = typename Fused::Args;
  using Enqueue = Status (*)(const Problem&, const Args&, Workspace, Stream);
  // `enqueue`, if given, runs instead of the stages.
  explicit Offering(Device& inner, Enqueue enqueue = stage_by_stage) : inner_(inner) {
    parts_of = &inner;
    own_ = {.name = kName,
            .backend = Backend::kCpu,
            .supports = [](const Problem& p, const DeviceInfo&) { return stages(p).refusal; },
            .cost_us = [](const Problem& p,
                          const DeviceInfo&) { return Fused::tokens_of(p) <= kOwnTokens ? 1e-6 : 1e6; },
            .workspace_bytes = [](const Problem& p, const DeviceInfo&) { return stages(p).workspace_bytes; },
            .enqueue = enqueue,
            .batch_invariant = true};
    for_each_op([&]<class Op>() {
      for (const Candidate<Op>* c : inner.catalog().table<Op>()) catalog_.add(*c);
    });
    catalog_.add(own_);
  }
  static inline const std::string kName = "cpu." + std::string(Fused::kName) + ".own";
  static constexpr int64_t kOwnTokens = 5;
  static Status stage_by_stage(const Problem& p, const Args& a, Workspace w, Stream s) {
    const auto plan = RunPlan<Fused>::stage_by_stage(parts_of->info(), parts_of->catalog(), p);
    return plan.ok() ? plan.value().run(a, w, s) : plan.status();
  }
  const DeviceInfo& info() const override { return inner_.info(); }
  const Catalog& catalog() const override { return catalog_; }
  Result<void*> allocate(size_t bytes) override { return inner_.allocate(bytes); }
  void release(void* memory) override { inner_.release(memory); }
  bool shares_host_memory() const override { return true; }
  Result<void*> allocate_host(size_t bytes) override { return inner_.allocate_host(bytes); }
  void release_host(void* memory) override { inner_.release_host(memory); }
  int64_t free_bytes() const override { return inner_.free_bytes(); }
  Stream stream() override { return inner_.stream(); }
  Status copy(void* to, const void* from, size_t bytes, Stream s) override {
    return inner_.copy(to, from, bytes, s);
  }
  Status wait(Stream s) override { return inner_.wait(s); }
  Result<std::unique_ptr<Recording>> record(Stream s, const std::function<Status()>& f) override {
    return inner_.record(s, f);
  }
  Status replay(const Recording& recording, Stream s) override { return inner_.replay(recording, s); }

 private:
  // The device whose kernels compute the stages; static because candidates are plain functions.
  static inline Device* parts_of = nullptr;
  static RunDecision decision(const Problem& p) {
    return decide_run<Fused>(p, parts_of->info(), parts_of->catalog());
  }
  static Verdict stages(const Problem& p) {
    const Decision d = decision(p).decision;
    return d.verdicts.empty() ? Verdict{.candidate = kName, .refusal = d.contract} : d.verdicts.back();
  }

  Device& inner_;
  Candidate<Fused> own_;
  Catalog catalog_;
};
using OfferingDevice = Offering<ExpertMlp>;

}  // namespace sluice::test
