// A device on which the experts of a few tokens run as one operation, from ids or from rows that are grouped.
#pragma once
#include <functional>
#include <memory>
#include <type_traits>
#include <vector>

#include "dispatch/device.h"

namespace sluice::test {

// A CPU whose composition of OfExperts, ExpertMlp or GroupedMlp, stands for a kernel of its own, as if they cost next to nothing up to kOwnTokens tokens
// and more than anything beyond. `inner` must outlive it.
template <class OfExperts>
class Offering final : public Device {
 public:
  using Problem = typename OfExperts::Problem;
  using Args = typename OfExperts::Args;
  using Enqueue = Status (*)(const Problem&, const Args&, Workspace, Stream);
  // With `enqueue` that runs in place of them.
  explicit Offering(Device& inner, Enqueue enqueue = nullptr) : inner_(inner) {
    for_each_op([&]<class Op>() {
      for (const Candidate<Op>* c : inner.catalog().table<Op>()) {
        if constexpr (std::is_same_v<Op, OfExperts>) {
          own_.push_back(std::make_unique<Candidate<Op>>(*c));
          Candidate<Op>& own = *own_.back();
          own.parts = {};
          inner_configs = own.configs;
          own.configs = [](const Problem& p, const DeviceInfo& d, const Policy& policy) {
            std::vector<Config> all = inner_configs(p, d, policy);
            for (Config& one : all) one.cost_us = Op::tokens_of(p) <= kOwnTokens ? 1e-6 : 1e6;
            return all;
          };
          if (enqueue) {
            in_its_place = enqueue;
            own.enqueue_config = [](const Problem& p, std::span<const KernelLaunch>, const Args& a,
                                    Workspace w, Stream s) { return in_its_place(p, a, w, s); };
          }
          catalog_.add(*own_.back());
        } else {
          catalog_.add(*c);
        }
      }
    });
  }
  static constexpr int64_t kOwnTokens = 5;
  static inline decltype(Candidate<OfExperts>::configs) inner_configs = nullptr;
  static inline Enqueue in_its_place = nullptr;
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
  Device& inner_;
  std::vector<std::unique_ptr<Candidate<OfExperts>>> own_;
  Catalog catalog_;
};
using OfferingDevice = Offering<ExpertMlp>;

}  // namespace sluice::test
