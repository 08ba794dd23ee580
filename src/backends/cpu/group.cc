#include "backends/cpu/group.h"

#include <string>
#include <thread>
#include <vector>

#include "backends/cpu/device.h"
#include "base/fields.h"

namespace sluice::cpu {
namespace {

constexpr uint64_t kStopped = uint64_t{1} << 62;
// How often a rank yields before it sleeps. If each rank has its own cores, ranks with equal
// work arrive within this time. With fewer cores, yielding lets the other ranks arrive.
constexpr int kBarrierYields = 200;

class CpuGroup final : public Group {
 public:
  explicit CpuGroup(std::span<Device* const> devices) : shared_(static_cast<int>(devices.size())) {
    for (size_t r = 0; r < devices.size(); ++r) members_.push_back({&shared_, static_cast<int>(r)});
    for (size_t r = 0; r < devices.size(); ++r) {
      queues_.push_back(&group_queue_of(devices[r]->stream()));
      queues_.back()->member = &members_[r];
    }
  }
  ~CpuGroup() override {
    for (GroupQueue* queue : queues_) queue->member = nullptr;
  }
  int ranks() const override { return shared_.ranks(); }
  void stop(int rank, const Status& why) override { shared_.stop(rank, why); }
  Status status() const override { return shared_.status(); }
  Status recover() override { return shared_.recover(), Status{}; }

 private:
  SharedGroup shared_;
  std::vector<Member> members_;
  std::vector<GroupQueue*> queues_;
};

}  // namespace

void SharedGroup::stop(int rank, const Status& why) {
  if (!fault_.set(rank, why)) return;
  arrived_.fetch_add(kStopped, std::memory_order_acq_rel);
  arrived_.notify_all();
}

void SharedGroup::recover() {
  arrived_.store(0, std::memory_order_relaxed);
  fault_.clear();
}

bool SharedGroup::arrive() {
  const auto ranks = static_cast<uint64_t>(ranks_);
  uint64_t seen = arrived_.fetch_add(1, std::memory_order_acq_rel) + 1;
  const uint64_t all = (seen + ranks - 1) / ranks * ranks;
  if (seen == all) arrived_.notify_all();
  for (int yields = 0; seen < all; ++yields) {
    if (yields < kBarrierYields) {
      std::this_thread::yield();
    } else {
      arrived_.wait(seen, std::memory_order_acquire);
    }
    seen = arrived_.load(std::memory_order_acquire);
  }
  return !stopped();
}

bool SharedGroup::begin(int rank, const AllReduceNorm::Problem& problem, const Tensor& x) {
  shown_[static_cast<size_t>(rank)] = {problem, x};
  if (!arrive()) return false;
  for (int other = 0; other < ranks_; ++other) {
    const AllReduceNorm::Problem& theirs = shown_[static_cast<size_t>(other)].problem;
    if (theirs == problem) continue;
    stop(rank, invalid("all_reduce_norm: wanted the problem of rank " + std::to_string(other) + " (" +
                       fields_text(theirs) + "), found " + fields_text(problem)));
    return false;
  }
  return true;
}

Result<std::unique_ptr<Group>> make_group(std::span<Device* const> devices) {
  for (size_t r = 0; r < devices.size(); ++r) {
    const std::string rank = "cpu: group: rank " + std::to_string(r) + ": wanted a ";
    if (devices[r]->info().backend != Backend::kCpu)
      return invalid(rank + "CPU device, found " + text(devices[r]->info()));
    if (group_queue_of(devices[r]->stream()).member)
      return invalid(rank + "device outside any group, found one that is in a group");
    for (size_t other = 0; other < r; ++other)
      if (devices[other] == devices[r])
        return invalid(rank + "different device for each rank, found the device of rank " +
                       std::to_string(other));
  }
  return std::unique_ptr<Group>(std::make_unique<CpuGroup>(devices));
}

}  // namespace sluice::cpu
