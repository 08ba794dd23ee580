// One step of a Decoder as two graphs: the layers, and the head after them.
#pragma once
#include "nn/decoder.h"

namespace sluice {

// Call values: token_ids; then for each group of layers positions, slot_of, q_begin, kv_len, page_table,
// rope; then captured and zeros; then, with config.taps, the numbers of the rows and taps. Held values: decoder_weights() except lm_head, and the caches. With
// offloaded experts, a layer with experts ends at a cut; the experts and the following norm run at the cut,
// and their weights are not held.
struct LayersGraph {
  Graph graph;
  ValueId stream = kNoValue, normed = kNoValue;  // normed: the result of the last norm
};
// rows_max: upper bound of one sequence's rows; 0: unknown.
LayersGraph layers_graph(const DecoderConfig& config, const StepBounds& bounds, int64_t rows_max,
                         bool experts_offloaded);

// Call values: logit_rows, unless `every_row`; the rows that the layers produced; then logits, or token and
// logprob. Held: lm_head.
Graph head_graph(const DecoderConfig& config, const StepBounds& bounds, bool every_row, bool greedy);

}  // namespace sluice
