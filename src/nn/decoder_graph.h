// One step of a Decoder as a graph: its layers, and what follows them.
#pragma once
#include "nn/decoder.h"

namespace sluice {

// Of a call: token_ids, then of each group of layers positions, slot_of, q_begin, kv_len, page_table, rope; then captured and zeros. Held: what
// for_each_held() visits. With experts apart each layer ends with a cut, behind which they and the norm that follows them stand.
struct LayersGraph {
  Graph graph;
  ValueId stream = kNoValue, normed = kNoValue;  // normed: what the last norm gave
};
LayersGraph layers_graph(const DecoderConfig& config, const StepBounds& bounds, bool decodes,
                         bool experts_apart);

// Of a call: logit_rows, unless `every_row`, then the rows that the layers gave, then logits or token and logprob. Held: lm_head.
Graph head_graph(const DecoderConfig& config, const StepBounds& bounds, bool every_row, bool greedy);

// Tensors that a step holds around its layers, and of each layer beside its weight_slots().
inline constexpr size_t kHeldAround = 3, kHeldOfLayer = 11;

// Calls visit(layer, name, tensor) for each tensor that a step holds, in order; layer -1: around them. weights and caches may be null: then
// the tensors are, too.
template <class Visit>
void for_each_held(const DecoderConfig& config, const DecoderWeights* weights,
                   const std::vector<KvCache>* caches, Visit visit) {
  const auto give = [&](int32_t layer, std::string_view name, const Tensor* tensor) {
    visit(layer, name, tensor);
  };
  give(-1, "lm_head", weights ? &weights->lm_head : nullptr);
  give(-1, "embedding", weights ? &weights->embedding : nullptr);
  give(-1, "final_norm", weights ? &weights->final_norm : nullptr);
  const MoeConfig moe = layer_moe(config);
  for (int32_t layer = 0; layer < static_cast<int32_t>(config.layers()); ++layer) {
    static const DecoderLayerWeights kNone;
    const auto at = static_cast<size_t>(layer);
    // Its tensors are read alone; the list of slots takes pointers that may be written to.
    DecoderLayerWeights l = weights ? weights->layers[at] : kNone;
    give(layer, "attention_norm", &l.attention_norm);
    give(layer, "moe_norm", &l.moe_norm);
    give(layer, "qkv", &l.attention.qkv);
    give(layer, "qkv_bias", &l.attention.qkv_bias);
    give(layer, "o", &l.attention.o);
    give(layer, "o_bias", &l.attention.o_bias);
    give(layer, "sinks", &l.attention.sinks);
    give(layer, "q_norm", &l.attention.q_norm);
    give(layer, "k_norm", &l.attention.k_norm);
    give(layer, "k_cache", caches ? &(*caches)[at].k : nullptr);
    give(layer, "v_cache", caches ? &(*caches)[at].v : nullptr);
    for (const auto& [spec, tensor] : weight_slots(moe, &l.moe)) give(layer, spec.name, tensor);
  }
}

}  // namespace sluice
