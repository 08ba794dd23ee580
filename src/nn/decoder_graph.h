// One step of a Decoder as a graph: its layers, and what follows them.
#pragma once
#include "nn/decoder.h"

namespace sluice {

// Of a call: token_ids, then of each group of layers positions, slot_of, q_begin, kv_len, page_table, rope; then captured and zeros. Held:
// decoder_weights(), but for lm_head, and caches. With experts apart, a layer that has experts ends with a cut, behind which they and the
// norm that follows them stand; their weights are not held.
struct LayersGraph {
  Graph graph;
  ValueId stream = kNoValue, normed = kNoValue;  // normed: what the last norm gave
};
LayersGraph layers_graph(const DecoderConfig& config, const StepBounds& bounds, bool decodes,
                         bool experts_apart);

// Of a call: logit_rows, unless `every_row`, then the rows that the layers gave, then logits or token and logprob. Held: lm_head.
Graph head_graph(const DecoderConfig& config, const StepBounds& bounds, bool every_row, bool greedy);

}  // namespace sluice
