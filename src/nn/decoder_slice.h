// The part of a decoder that one of several devices holds.
#pragma once
#include "nn/decoder.h"
#include "nn/moe/slice.h"

namespace sluice {

// One of `ranks` devices that compute a decoder together. Each has its heads of every attention with their caches, and its columns of
// every expert (nn/moe/slice.h), and adds its parts to those of the others twice per layer (ops/all_reduce_norm.h). Each has all of
// the embedding, the norms, the routers and the output layer.
struct DecoderSlice {
  int64_t rank = 0, ranks = 1;
};

// Returns the decoder of one rank; with one rank, `whole`. Biases of output projections are on rank 0 alone.
// kInvalidArgument names the size that `ranks` does not divide; kUnsupported the part of the decoder that has no slices.
Result<DecoderConfig> sliced(const DecoderConfig& whole, const DecoderSlice& slice);

// The rows of a rank in a weight of attention that is divided by rows ("attention.qkv", "attention.qkv_bias", "attention.sinks"), in
// order, or its columns of one that is divided by columns ("attention.o"). Empty: every rank has the whole weight.
struct WeightParts {
  std::vector<Part> rows;
  Part columns;
};
WeightParts parts_of_weight(const AttentionConfig& whole, std::string_view weight, const DecoderSlice& slice);

}  // namespace sluice
