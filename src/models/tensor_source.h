// Provides tensors to the loaders of models: from a checkpoint's files, or random weights.
#pragma once
#include <memory>
#include <span>
#include <string>

#include "models/random_weights.h"

namespace sluice {

// Tensors in FP8 with one scale for each block of 128 x 128 elements ("NAME.weight" in F8_E4M3, "NAME.weight_scale_inv" in F32) are
// read as BF16: code * scale, rounded once.
bool is_in_fp8(const Checkpoint& files, const TensorSpec& spec);
std::string name_of_scales(const TensorSpec& spec);
// Checks the shape of such a tensor, and that its scales exist, in F32 or another number type. kCorrupt names file and tensor.
Status check_fp8(const Checkpoint& files, const TensorSpec& spec);

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
  // Whether the files keep this tensor in FP8.
  bool is_fp8(const TensorSpec& spec) const { return file_ && is_in_fp8(*file_, spec); }
  // Returns a checkpoint with these tensors, valid until the next call. Files in other types are mapped; random weights and tensors in
  // FP8 take host memory.
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
