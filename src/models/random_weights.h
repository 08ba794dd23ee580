// A model's weights at random: the tensors of `sluice make-checkpoint`, byte by byte, made when they are wanted.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "models/family.h"
#include "weights/random_fill.h"

namespace sluice {

// What a tensor of a random checkpoint holds: projections with a variance of 1 / width, so that activations stay of order one and
// a router's scores spread over its experts; norms about one, small biases, MXFP4 scales to match.
RandomContents random_contents(const TensorSpec& spec);

// A seed and a list of tensors, in their order, say every byte: tensor by tensor from one stream of words.
class RandomWeights {
 public:
  RandomWeights(const std::vector<TensorSpec>& specs, uint64_t seed, int threads);
  const std::string& place() const { return place_; }  // what errors call it
  int64_t bytes() const { return bytes_; }             // of all tensors

  // These tensors of the list, or parts of them, in host memory, until the next call. That memory is all that this needs: as much as
  // the largest call wants.
  Result<const Checkpoint*> make(std::span<const TensorSpec> specs);
  // Bytes from `begin` on, a multiple of 8, of one tensor.
  void fill(const TensorSpec& spec, int64_t begin, std::span<std::byte> out);

 private:
  std::string place_;
  RandomFill random_;
  Workers workers_;
  std::unordered_map<std::string, uint64_t> first_word_;  // of each tensor
  int64_t bytes_ = 0;
  std::unique_ptr<std::byte[]> memory_;
  int64_t capacity_ = 0;
  std::unique_ptr<Checkpoint> made_;  // of views of memory_
};

}  // namespace sluice
