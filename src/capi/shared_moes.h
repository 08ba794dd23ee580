// The planned layers of a device. Most layers of a model have equal options, and planning a layer for thousands of
// tokens takes tenths of a second. So layers with equal options share one Moe, which running does not change.
#pragma once
#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "nn/moe/layer.h"

namespace sluice::capi {

class SharedMoes {
 public:
  Result<std::shared_ptr<const Moe>> get(Device& device, const MoeConfig& config, int64_t tokens_max,
                                         const Policy& policy, const MoeBackend& backend) {
    Made wanted{config, tokens_max, policy, backend, {}};
    const std::lock_guard lock(mutex_);
    std::erase_if(made_, [](const Made& m) { return m.moe.expired(); });
    for (const Made& m : made_)
      if (same(m, wanted))
        if (auto moe = m.moe.lock()) return latest_ = std::move(moe);
    auto planned = Moe::plan(device, config, tokens_max, policy, backend);
    if (!planned.ok()) return planned.status();
    latest_ = std::move(planned).value();
    wanted.moe = latest_;
    made_.push_back(std::move(wanted));
    return latest_;
  }

 private:
  struct Made {
    MoeConfig config;
    int64_t tokens_max;
    Policy policy;
    MoeBackend backend;
    std::weak_ptr<const Moe> moe;
  };
  static bool same(const Made& a, const Made& b) {
    return a.config == b.config && a.tokens_max == b.tokens_max && a.policy.force == b.policy.force &&
           a.policy.batch_invariant == b.policy.batch_invariant && a.backend.decode == b.backend.decode &&
           a.backend.prefill == b.backend.prefill && a.backend.decode_tokens == b.backend.decode_tokens;
  }
  std::mutex mutex_;
  std::vector<Made> made_;
  // so that sluice_layer_create after sluice_layer_measure does not plan again
  std::shared_ptr<const Moe> latest_;
};

}  // namespace sluice::capi
