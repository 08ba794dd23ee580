// Provides tensors to the model loaders, from a checkpoint's files or as random weights.
#pragma once
#include <memory>
#include <span>
#include <string>

#include "models/random_weights.h"

namespace sluice {

// Whether a matrix that a model needs in BF16 is widened: the files have it in a quantized format of
// weights/stored_matrix.h, such as FP8 with block scales. Its BF16 value is code * scale, rounded once.
bool is_widened(const Checkpoint& files, const TensorSpec& spec);
// Checks that all tensors of such a matrix exist and have the right shapes. kCorrupt names the file and the
// tensor.
Status check_widened(const Checkpoint& files, const TensorSpec& spec);

class TensorSource {
 public:
  static TensorSource of_files(std::unique_ptr<Checkpoint> file, int threads);
  // specs: all tensors that hold() may be called for, in the order of the random stream.
  static TensorSource of_random(const std::vector<TensorSpec>& specs, const RandomOptions& options,
                                int threads);

  const Checkpoint* files() const { return file_.get(); }  // null for random weights
  const std::string& place() const { return file_ ? file_->path() : random_->place(); }
  // Checks that the files have this tensor. kCorrupt names the file and the tensor, what was wanted and what
  // was found.
  Status check(const TensorSpec& spec) const;
  // Whether hold() converts this matrix from a quantized format.
  bool is_widened(const TensorSpec& spec) const { return file_ && sluice::is_widened(*file_, spec); }
  // Returns a checkpoint with these tensors, valid until the next call. Random weights and converted tensors
  // are in host memory; all other tensors are views of the mapped files.
  Result<const Checkpoint*> hold(std::span<const TensorSpec> specs);

 private:
  TensorSource() = default;
  Status widen(const TensorSpec& spec, std::byte* to);

  std::unique_ptr<Checkpoint> file_;  // exactly one of the two is set
  std::unique_ptr<RandomWeights> random_;
  std::unique_ptr<Workers> workers_;
  std::unique_ptr<std::byte[]> memory_;
  int64_t capacity_ = 0;
  std::unique_ptr<Checkpoint> held_;  // views of memory_ and of the files
};

}  // namespace sluice
