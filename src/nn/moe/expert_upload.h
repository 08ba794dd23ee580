// Uploads a checkpoint's experts to device memory and packs them on the device.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "dispatch/plan.h"
#include "nn/owned_tensor.h"
#include "nn/upload_ring.h"
#include "weights/packed.h"

namespace sluice {

// Host threads read rows in pieces, hash and check them, and copy them to a ring of page-locked memory
// (nn/upload_ring.h). The caller's thread enqueues the uploads in order, and after the last piece of each
// matrix the packing kernel (ops/pack_experts.h). The object owns the ring, and device memory for
// one matrix.
class ExpertUpload {
 public:
  struct Options {
    int threads = 0;                         // reading threads, including the caller's; 0: one per processor
    int64_t piece_bytes = int64_t{1} << 20;  // size of the pieces that threads read; at least 64 rows
    int64_t ring_bytes = int64_t{32} << 20;  // raised if two pieces do not fit
  };
  // One matrix of an expert, and its destination.
  struct Job {
    PackedExperts* to = nullptr;
    int64_t expert = 0;
    const MatrixSource* from = nullptr;
  };
  // Callbacks, which receive the job's index.
  struct Watch {
    std::function<void(size_t job)> read = [](size_t) {};  // on any thread, after the job's rows were read
    // on the caller's thread, in order, after the job was enqueued
    std::function<void(size_t job)> sent = [](size_t) {};
  };

  // Bytes of device memory that make() allocates for staging.
  static int64_t device_bytes(std::span<const PackedMatrix> matrices);
  // Plans the packing of these matrices. kInvalidArgument: a matrix has a layout other than fragments.
  // kUnsupported: the device has no packing kernel for a matrix. kOutOfMemory.
  static Result<std::unique_ptr<ExpertUpload>> make(Device& device, std::span<const PackedMatrix> matrices,
                                                    const Options& options);

  // Packs the jobs in order into their destinations, whose addresses do not change, and returns when all are
  // complete. kCorrupt names the first weight or scale that is not finite; that job and later jobs are not
  // written, earlier jobs may be.
  Status pack(std::span<const Job> jobs, const Watch& watch);

 private:
  struct Packer {
    PackedMatrix matrix;
    Plan<PackExperts> plan;
  };
  // Row blocks of a job that one thread reads at a time.
  struct Piece {
    size_t job;
    int64_t first, blocks;
  };
  class Under;  // one call of pack()
  ExpertUpload(Device& device, const Options& options) : device_(device), options_(options) {}
  Status check(const Job& job) const;
  const Packer* packer_of(const PackedMatrix& matrix) const;
  std::vector<Piece> pieces_of(std::span<const Job> jobs) const;
  Status send(const PackedMatrix& matrix, const RowBlocks& piece);
  Status pack_sent(const Job& job, uint64_t fingerprint);

  Device& device_;
  Options options_;
  std::vector<Packer> packers_;
  std::unique_ptr<UploadRing> ring_;
  OwnedTensor staging_, scratch_;
};

}  // namespace sluice
