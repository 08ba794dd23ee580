// Uploads experts of a checkpoint into device memory and packs them there.
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

// Host threads read rows piece by piece, hash and check them, and copy them into a ring of page-locked memory
// (nn/upload_ring.h). The caller's thread sends the pieces on in order, and the device packs a matrix
// (ops/pack_experts.h) when its last piece has arrived. The object owns the ring and device memory for one matrix.
class ExpertUpload {
 public:
  struct Options {
    int threads = 0;  // threads that read, the caller's included; 0: one for each processor
    int64_t piece_bytes = int64_t{1} << 20;  // size of the pieces that threads read; at least 64 rows
    int64_t ring_bytes = int64_t{32} << 20;  // more, if two pieces need it
  };
  // One matrix of an expert, and its destination.
  struct Job {
    PackedExperts* to = nullptr;
    int64_t expert = 0;
    const MatrixSource* from = nullptr;
  };
  // Callbacks that receive a job's number.
  struct Watch {
    std::function<void(size_t job)> read = [](size_t) {};  // on any thread: the job's rows have been read
    // on the caller's thread, in order: the job has been enqueued
    std::function<void(size_t job)> sent = [](size_t) {};
  };

  // Bytes of device memory that make() takes.
  static int64_t device_bytes(std::span<const PackedMatrix> matrices);
  // For these matrices. kInvalidArgument: a layout that the device does not pack. kUnsupported: no kernel
  // of the device packs it. kOutOfMemory.
  static Result<std::unique_ptr<ExpertUpload>> make(Device& device, std::span<const PackedMatrix> matrices,
                                                    const Options& options);

  // Packs the jobs in order into their destinations, whose addresses do not change, and returns when all are
  // complete. kCorrupt names the first NaN scale: that job and later jobs are not written then, earlier jobs may be.
  Status pack(std::span<const Job> jobs, const Watch& watch);

 private:
  // One of the matrices: its rows, followed by its scales.
  struct Packer {
    PackedMatrix matrix;
    Plan<PackExperts> plan;
  };
  // Row blocks of a job that one thread reads.
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
