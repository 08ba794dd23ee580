// Experts from a checkpoint into a device's memory, packed there.
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

// Host threads copy rows, hashed and checked, piece by piece into a ring of page-locked memory (nn/upload_ring.h); the caller's
// thread sends the pieces on in order, and the device packs a matrix (ops/pack_experts.h) when its last piece has arrived. The
// ring and one matrix in the device's memory go with the object.
class ExpertUpload {
 public:
  struct Options {
    int threads = 0;                         // the caller's, and those that read; 0: one for each processor
    int64_t piece_bytes = int64_t{1} << 20;  // that one thread reads at once; at least 64 rows are
    int64_t ring_bytes = int64_t{32} << 20;  // more, if two pieces need it
  };
  // One matrix of an expert, and where it goes.
  struct Job {
    PackedExperts* to = nullptr;
    int64_t expert = 0;
    const MatrixSource* from = nullptr;
  };
  // Callbacks that get a job's number.
  struct Watch {
    std::function<void(size_t job)> read = [](size_t) {};  // on some thread: its rows are not read again
    std::function<void(size_t job)> sent = [](size_t) {
    };  // on the caller's thread, in order: it is on its way
  };

  // Bytes of the device's memory that make() takes.
  static int64_t device_bytes(std::span<const PackedMatrix> matrices);
  // For these matrices. kInvalidArgument: a layout that the device does not pack. kUnsupported: no kernel of it does.
  // kOutOfMemory.
  static Result<std::unique_ptr<ExpertUpload>> make(Device& device, std::span<const PackedMatrix> matrices,
                                                    const Options& options);

  // Packs each job into its place, which does not move, in order, and returns when all are there. kCorrupt names the first NaN
  // scale: its job and those after it are not written then, those before it may be.
  Status pack(std::span<const Job> jobs, const Watch& watch);

 private:
  // One of the matrices: its rows, and its scales after them.
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
