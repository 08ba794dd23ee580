// A model's random weights, generated on demand. Their bytes equal the tensors that `sluice make-checkpoint`
// writes.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "models/family.h"
#include "weights/random_fill.h"

namespace sluice {

// Contents of a tensor of a random checkpoint. Projections have variance 1 / width, so that activations stay
// of order one and a router's logits differ between experts; scales of quantized weights are chosen to match.
// Norm weights are about one, biases are small. The embedding has variance 2 * layers, as much as all
// residual branches together could add, so that tokens stay distinct up to the last router. With variance
// one, the component that the branches add to all tokens alike would grow from layer to layer, because
// attention averages values and so keeps their common part. 64 tokens of a 36-layer model would then choose
// 80 of 128 experts instead of 111.
RandomContents random_contents(const TensorSpec& spec, int64_t layers);

// How the routers of random weights distribute tokens over experts.
enum class Routing : uint8_t {
  kUniform,  // all experts about equally often, as trained routers nearly do
  kZipf,     // expert of rank r with probability proportional to 1 / r; ranks differ from layer to layer
};
// The router biases of experts by rank for kZipf. If router logits without bias are normally distributed with
// variance 1, the top_k experts then follow Zipf's law, without repetition.
std::vector<float> zipf_bias(int64_t experts, int64_t top_k);

struct RandomOptions {
  uint64_t seed = 0;
  Routing routing = Routing::kUniform;
  int64_t top_k = 1;  // experts per token; for kZipf
};

// Every byte depends only on the seed and the ordered list of tensors, because the tensors take their bytes
// from one random stream in order. kZipf changes only the bytes of router biases.
class RandomWeights {
 public:
  RandomWeights(const std::vector<TensorSpec>& specs, const RandomOptions& options, int threads);
  const std::string& place() const { return place_; }  // prefix of error messages
  int64_t bytes() const { return bytes_; }             // bytes of all tensors

  // Generates some tensors of the list, or parts of them, in host memory; they are valid until the next call.
  // The memory grows to the size of the largest call's tensors.
  Result<const Checkpoint*> make(std::span<const TensorSpec> specs);
  // Generates the bytes of one tensor from byte `begin` on, which must be a multiple of 8.
  void fill(const TensorSpec& spec, int64_t begin, std::span<std::byte> out);

 private:
  // Generates a router's bias for kZipf, from byte `begin` of the tensor on.
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
