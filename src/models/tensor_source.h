// Provides tensors to the loaders of models: from a checkpoint's files, or random weights.
#pragma once
#include <memory>
#include <span>
#include <string>

#include "models/random_weights.h"

namespace sluice {

// Matrices in a format of weights/stored_matrix.h, such as FP8 with a scale for each block, that a model needs in BF16: code * scale,
// rounded once.
bool is_widened(const Checkpoint& files, const TensorSpec& spec);
// Checks the shapes of such a matrix's tensors, and that its scales are there. kCorrupt names file and tensor.
Status check_widened(const Checkpoint& files, const TensorSpec& spec);

class TensorSource {
 public:
  static TensorSource of_files(std::unique_ptr<Checkpoint> file, int threads);
  // The tensors that will be requested, in the order of their random numbers.
  static TensorSource of_random(const std::vector<TensorSpec>& specs, const RandomOptions& options,
                                int threads);

  const Checkpoint* files() const { return file_.get(); }  // null for random weights
  const std::string& place() const { return file_ ? file_->path() : random_->place(); }
  // Checks that the files have this tensor. kCorrupt names file and tensor, what was wanted and what was found.
  Status check(const TensorSpec& spec) const;
  // Whether the files keep this matrix in another format than BF16, as which it is read.
  bool is_widened(const TensorSpec& spec) const { return file_ && sluice::is_widened(*file_, spec); }
  // Returns a checkpoint with these tensors, valid until the next call. Files in other types are mapped; random weights and widened
  // matrices take host memory.
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
