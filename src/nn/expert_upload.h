// Experts from a checkpoint into a device's memory, packed there.
#pragma once
#include <array>
#include <memory>
#include <span>
#include <vector>

#include "dispatch/plan.h"
#include "nn/owned_tensor.h"
#include "weights/packed.h"

namespace sluice {

// Threads of the host bring one matrix's rows into page-locked memory, hash and check them, while the device takes and packs
// (ops/pack_experts.h) the matrix before. Two buffers of the host and one of the device, each as large as the largest matrix, go
// with the object.
class ExpertUpload {
 public:
  // Bytes of the device's memory that make() takes.
  static int64_t device_bytes(std::span<const PackedMatrix> matrices);
  // For these matrices, on `threads` threads (0: one for each processor). kInvalidArgument: a layout that the device does not
  // pack. kUnsupported: no kernel of it does. kOutOfMemory.
  static Result<std::unique_ptr<ExpertUpload>> make(Device& device, std::span<const PackedMatrix> matrices,
                                                    int threads);
  ~ExpertUpload();
  ExpertUpload(const ExpertUpload&) = delete;
  ExpertUpload& operator=(const ExpertUpload&) = delete;

  // Reads one matrix and enqueues its way into its place, which does not move; by then the matrix before is in its own.
  // kCorrupt names a NaN scale; nothing of this matrix is written then.
  Status pack(PackedExperts* to, int64_t expert, const MatrixSource& from);
  // Waits for the last one: before any kernel that reads the weights is enqueued, since kernels may read weights before the kernel
  // in front of them is done.
  Status finish() { return device_.wait(device_.stream()); }

 private:
  // One of the matrices: its rows, and its scales behind them.
  struct Packer {
    PackedMatrix matrix;
    Plan<PackExperts> plan;
  };
  ExpertUpload(Device& device, int threads) : device_(device), workers_(threads) {}
  const Packer* packer_of(const PackedMatrix& matrix) const;

  Device& device_;
  Workers workers_;
  std::vector<Packer> packers_;
  std::array<void*, 2> host_{};
  size_t turn_ = 0;
  OwnedTensor staging_, scratch_;
};

}  // namespace sluice
