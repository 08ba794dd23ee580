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
// a router's scores spread over its experts; norms about one, small biases, MXFP4 scales to match. Embeddings have a variance of twice
// the model's layers: as much as all its residual branches could add, so that tokens stay different from each other up to the last
// router. With a variance of one, what branches add to every token alike grows from layer to layer (attention averages values, and
// keeps what they share), and 64 tokens of a model of 36 layers choose 80 of 128 experts in place of 111.
RandomContents random_contents(const TensorSpec& spec, int64_t layers);

// How often the routers of random weights choose an expert.
enum class Routing : uint8_t {
  kUniform,  // each about as often as any other, as trained routers nearly do
  kZipf,     // with a chance that falls with the inverse of its rank; ranks differ from layer to layer
};
// The bias of each expert of a router whose other scores are normal with variance 1, in the order of ranks: so that the `top_k`
// largest are chosen by Zipf's law, without repetition.
std::vector<float> zipf_bias(int64_t experts, int64_t top_k);

struct RandomOptions {
  uint64_t seed = 0;
  Routing routing = Routing::kUniform;
  int64_t top_k = 1;  // experts of a token; of kZipf
};

// A seed and a list of tensors, in their order, say every byte: tensor by tensor from one stream of words. With another routing the
// biases of routers alone have other bytes.
class RandomWeights {
 public:
  RandomWeights(const std::vector<TensorSpec>& specs, const RandomOptions& options, int threads);
  const std::string& place() const { return place_; }  // what errors call it
  int64_t bytes() const { return bytes_; }             // of all tensors

  // These tensors of the list, or parts of them, in host memory, until the next call. That memory is all that this needs: as much as
  // the largest call wants.
  Result<const Checkpoint*> make(std::span<const TensorSpec> specs);
  // Bytes from `begin` on, a multiple of 8, of one tensor.
  void fill(const TensorSpec& spec, int64_t begin, std::span<std::byte> out);

 private:
  // A router's bias by Zipf's law: its first byte is `begin` of the tensor's.
  void fill_zipf(const TensorSpec& spec, uint64_t first_word, int64_t begin, std::span<std::byte> out) const;

  RandomOptions options_;
  std::string place_;
  RandomFill random_;
  Workers workers_;
  std::unordered_map<std::string, uint64_t> first_word_;  // of each tensor
  int64_t bytes_ = 0, layers_ = 0;
  std::unique_ptr<std::byte[]> memory_;
  int64_t capacity_ = 0;
  std::unique_ptr<Checkpoint> made_;  // of views of memory_
};

}  // namespace sluice
