#include "backends/cuda/group/group.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "backends/cuda/device.h"
#include "backends/cuda/gpu_scope.h"

namespace sluice::cuda {
namespace {

std::string gpu_text(int index) { return "GPU " + std::to_string(index); }

// Lets kernels on GPU `from` access memory of GPU `to`.
Status reach(int from, int to) {
  if (from == to) return {};
  int possible = 0;
  SLUICE_TRY(check(cudaDeviceCanAccessPeer(&possible, from, to), "asking for peer access"));
  if (!possible)
    return unsupported(
        "cuda: group: wanted GPUs that access each other's memory (NVLink, or PCIe with peer access), found "
        "that " +
        gpu_text(from) + " cannot access " + gpu_text(to));
  const OnGpuScope on(from);
  SLUICE_TRY(check(on.error(), "peer access"));
  // Enabling access twice is an error that compute-sanitizer reports, so each pair is enabled once. Another library may already have enabled it.
  static std::mutex mutex;
  static std::set<std::pair<int, int>> enabled;
  const std::lock_guard lock(mutex);
  if (enabled.contains({from, to})) return {};
  const cudaError_t error = cudaDeviceEnablePeerAccess(to, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) {
    (void)cudaGetLastError();
  } else {
    SLUICE_TRY(check(error, "peer access from " + gpu_text(from) + " to " + gpu_text(to)));
  }
  enabled.emplace(from, to);
  return {};
}

class CudaGroup final : public Group {
 public:
  CudaGroup(std::span<Device* const> devices, const GroupOptions& options)
      : devices_(devices.begin(), devices.end()), members_(devices.size()) {
    for (Member& member : members_) member.row_bytes = options.row_bytes, member.fault = &fault_;
  }
  ~CudaGroup() override {
    for (size_t r = 0; r < members_.size(); ++r) {
      const OnGpuScope on(gpu(r));
      if (member_at(r) == &members_[r]) member_at(r) = nullptr;
      (void)devices_[r]->wait(devices_[r]->stream());
    }
    for (size_t r = 0; r < members_.size(); ++r) {
      const OnGpuScope on(gpu(r));
      cudaFree(members_[r].wire.window);
      cudaFree(members_[r].wire.exchanges);
    }
    if (stopped_) cudaFreeHost(stopped_);
  }

  Status start() {
    for (size_t from = 0; from < members_.size(); ++from)
      for (size_t to = 0; to < members_.size(); ++to) SLUICE_TRY(reach(gpu(from), gpu(to)));
    void* word = nullptr;
    SLUICE_TRY(check(cudaHostAlloc(&word, sizeof(uint32_t), cudaHostAllocPortable | cudaHostAllocMapped),
                     "group: memory for a flag"));
    stopped_ = static_cast<uint32_t*>(word);
    *stopped_ = 0;
    for (size_t r = 0; r < members_.size(); ++r) SLUICE_TRY(take_memory(r));
    for (Member& member : members_)
      for (size_t r = 0; r < members_.size(); ++r) member.wire.windows_of[r] = members_[r].wire.window;
    SLUICE_TRY(clear());
    for (size_t r = 0; r < members_.size(); ++r) member_at(r) = &members_[r];
    return {};
  }

  int ranks() const override { return static_cast<int>(members_.size()); }
  void stop(int rank, const Status& why) override {
    if (fault_.set(rank, why)) __atomic_store_n(stopped_, 1u, __ATOMIC_RELEASE);
  }
  Status status() const override { return fault_.status(); }
  Status recover() override {
    for (size_t r = 0; r < members_.size(); ++r) {
      const OnGpuScope on(gpu(r));
      SLUICE_TRY(check(cudaDeviceSynchronize(), "group: recovery"));
    }
    SLUICE_TRY(clear());
    __atomic_store_n(stopped_, 0u, __ATOMIC_RELEASE);
    fault_.clear();
    return {};
  }

 private:
  const Member*& member_at(size_t rank) { return *group_queue_of(devices_[rank]->stream()).member; }
  int gpu(size_t rank) const { return devices_[rank]->info().index; }
  // Kernels of all ranks must be resident at the same time, even if ranks share a GPU.
  int lanes() const {
    int cores = devices_.front()->info().cores;
    for (size_t r = 0; r < devices_.size(); ++r) {
      const auto same = [&](const Device* other) { return other->info().index == gpu(r); };
      const auto here = std::count_if(devices_.begin(), devices_.end(), same);
      cores = std::min(cores, devices_[r]->info().cores / static_cast<int>(here));
    }
    return cores;
  }
  size_t window_bytes(const Wire& wire) const {
    return sizeof(uint4) * static_cast<size_t>(wire.row_words) * Wire::kDepth * Wire::kRegions *
           static_cast<size_t>(wire.lanes) * members_.size();
  }
  Status take_memory(size_t rank) {
    const OnGpuScope on(gpu(rank));
    Member& member = members_[rank];
    Wire& wire = member.wire;
    wire.rank = static_cast<int>(rank), wire.ranks = ranks(), wire.lanes = lanes();
    wire.row_words = static_cast<int>((member.row_bytes + 7) / 8);
    wire.stopped = stopped_;
    const auto take = [&](size_t bytes, void** memory) -> Status {
      const cudaError_t error = cudaMalloc(memory, bytes);
      if (error == cudaSuccess) return {};
      (void)cudaGetLastError();
      if (error != cudaErrorMemoryAllocation) return check(error, "group: memory for exchanges");
      return out_of_memory("cuda: group: wanted " + std::to_string(bytes) + " bytes for exchanges on " +
                           gpu_text(gpu(rank)) + ", found " + std::to_string(devices_[rank]->free_bytes()) +
                           " free");
    };
    void *window = nullptr, *exchanges = nullptr;
    SLUICE_TRY(take(window_bytes(wire), &window));
    wire.window = static_cast<uint4*>(window);
    SLUICE_TRY(take(sizeof(uint32_t) * static_cast<size_t>(wire.lanes), &exchanges));
    wire.exchanges = static_cast<uint32_t*>(exchanges);
    return {};
  }
  // Clears the windows, so that no word has the number of a future exchange; exchanges are counted from 1.
  Status clear() {
    const std::vector<uint32_t> first(static_cast<size_t>(members_.front().wire.lanes), 1);
    for (size_t r = 0; r < members_.size(); ++r) {
      const OnGpuScope on(gpu(r));
      const Wire& wire = members_[r].wire;
      SLUICE_TRY(check(cudaMemset(wire.window, 0, window_bytes(wire)), "group: clearing a window"));
      SLUICE_TRY(check(
          cudaMemcpy(wire.exchanges, first.data(), first.size() * sizeof(uint32_t), cudaMemcpyHostToDevice),
          "group: counters"));
      SLUICE_TRY(check(cudaDeviceSynchronize(), "group: clearing a window"));
    }
    return {};
  }

  std::vector<Device*> devices_;
  std::vector<Member> members_;  // devices point to these elements
  GroupFault fault_;
  uint32_t* stopped_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<Group>> make_group(std::span<Device* const> devices, const GroupOptions& options) {
  for (size_t r = 0; r < devices.size(); ++r) {
    const std::string rank = "cuda: group: rank " + std::to_string(r) + ": wanted a ";
    if (devices[r]->info().backend != Backend::kCuda)
      return invalid(rank + "GPU, found " + text(devices[r]->info()));
    if (member_of(group_queue_of(devices[r]->stream())))
      return invalid(rank + "device outside any group, found one that is in a group");
    for (size_t other = 0; other < r; ++other)
      if (devices[other] == devices[r])
        return invalid(rank + "different device for each rank, found the device of rank " +
                       std::to_string(other));
  }
  auto group = std::make_unique<CudaGroup>(devices, options);
  SLUICE_TRY(group->start());
  return std::unique_ptr<Group>(std::move(group));
}

}  // namespace sluice::cuda
