// One step of a Decoder as two graphs: the layers, and the head after them.
#pragma once
#include "nn/decoder.h"

namespace sluice {

// Call values: token_ids; for each group of layers positions, slot_of, q_begin, kv_len, page_table, rope;
// captured, zeros; with config.taps also the row numbers and taps. Held values: decoder_weights() except
// lm_head, and the caches. With offloaded experts, each MoE layer ends at a cut: the experts and the
// following norm run between the parts of the graph, and their weights are not held values of the graph.
struct LayersGraph {
  Graph graph;
  ValueId stream = kNoValue, normed = kNoValue;  // normed: the output of the final norm
};
// rows_max: upper bound of the rows of one sequence; 0: unknown.
LayersGraph layers_graph(const DecoderConfig& config, const StepBounds& bounds, int64_t rows_max,
                         bool experts_offloaded);

// Call values: logit_rows, unless `every_row`; the output of the layers graph; then logits, or with `greedy`
// token and logprob. Held value: lm_head.
Graph head_graph(const DecoderConfig& config, const StepBounds& bounds, bool every_row, bool greedy);

}  // namespace sluice
