// Tensor parallelism: the slice of a decoder that one of several devices computes.
#pragma once
#include "nn/decoder.h"
#include "nn/moe/slice.h"

namespace sluice {

// One of `ranks` tensor-parallel devices. Each rank holds a share of the heads of every layer, their caches,
// and a share of the intermediate columns of every expert or, if expert_parallel, a range of whole experts
// (nn/moe/slice.h). Two all-reduces per layer sum the ranks' outputs (ops/all_reduce_norm.h). The embedding,
// the norms, the routers and lm_head are replicated.
struct DecoderSlice {
  int64_t rank = 0, ranks = 1;
  bool expert_parallel = false;
  // The part of every MoE layer.
  Slice mlp() const {
    return expert_parallel ? Slice{.ep_rank = rank, .ep_size = ranks}
                           : Slice{.tp_rank = rank, .tp_size = ranks};
  }
};

// Returns the decoder config of one rank, which is `whole` if ranks == 1. Only rank 0 has the biases of
// output projections. kInvalidArgument names the size that `ranks` does not divide; kUnsupported names the
// part of the decoder that cannot be sliced.
Result<DecoderConfig> sliced(const DecoderConfig& whole, const DecoderSlice& slice);

// A rank's share of an attention weight: row ranges of a weight that is divided by rows ("attention.qkv",
// "attention.qkv_bias", "attention.sinks"), or the columns of a weight that is divided by columns
// ("attention.o"). Empty: every rank has the whole weight.
struct WeightParts {
  std::vector<Part> rows;
  Part columns;
};
WeightParts parts_of_weight(const AttentionConfig& whole, std::string_view weight, const DecoderSlice& slice);

}  // namespace sluice
