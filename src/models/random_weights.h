// A model's random weights, generated on demand: byte for byte the tensors of `sluice make-checkpoint`.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "models/family.h"
#include "weights/random_fill.h"

namespace sluice {

// Content of a tensor of a random checkpoint. Projections have variance 1 / width, so that activations stay
// of order one and a router's scores spread over its experts. Norms are about one and biases are small; MXFP4
// scales match. The embedding's variance is twice the number of layers, as much as all residual branches
// could add, so that tokens stay distinct up to the last router. With variance one, the component that
// branches add to every token alike grows from layer to layer (attention averages values and keeps their
// common part), and 64 tokens of a model of 36 layers choose 80 of 128 experts instead of 111.
RandomContents random_contents(const TensorSpec& spec, int64_t layers);

// How the routers of random weights distribute tokens over experts.
enum class Routing : uint8_t {
  kUniform,  // all experts about equally often, nearly as trained routers do
  kZipf,     // with probability proportional to 1 / rank; ranks differ from layer to layer
};
// The biases of a router's experts by rank. With other scores normally distributed with variance 1, the
// `top_k` largest are then chosen by Zipf's law without repetition.
std::vector<float> zipf_bias(int64_t experts, int64_t top_k);

struct RandomOptions {
  uint64_t seed = 0;
  Routing routing = Routing::kUniform;
  int64_t top_k = 1;  // experts per token; for kZipf
};

// The seed and the ordered list of tensors determine every byte, because the tensors consume one random stream in
// order. Another routing changes only the bytes of router biases.
class RandomWeights {
 public:
  RandomWeights(const std::vector<TensorSpec>& specs, const RandomOptions& options, int threads);
  const std::string& place() const { return place_; }  // prefix of error messages
  int64_t bytes() const { return bytes_; }             // bytes of all tensors

  // Generates these tensors of the list, or parts of them, in host memory; they are valid until the next
  // call. Takes memory only for the largest call's tensors.
  Result<const Checkpoint*> make(std::span<const TensorSpec> specs);
  // Fills in the bytes of one tensor from `begin` on, a multiple of 8.
  void fill(const TensorSpec& spec, int64_t begin, std::span<std::byte> out);

 private:
  // Fills in a router's bias by Zipf's law, from byte `begin` of the tensor on.
  void fill_zipf(const TensorSpec& spec, uint64_t first_word, int64_t begin, std::span<std::byte> out) const;

  RandomOptions options_;
  std::string place_;
  RandomFill random_;
  Workers workers_;
  std::unordered_map<std::string, uint64_t> first_word_;  // position of each tensor in the random stream
  int64_t bytes_ = 0, layers_ = 0;
  std::unique_ptr<std::byte[]> memory_;
  int64_t capacity_ = 0;
  std::unique_ptr<Checkpoint> made_;  // views of memory_
};

}  // namespace sluice
