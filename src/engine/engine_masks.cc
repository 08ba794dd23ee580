// The part of Engine that handles the masks of filters, which worker threads compute.
#include <algorithm>

#include "engine/engine.h"

namespace sluice {

// Handles finished masks: ends requests whose filter failed, and returns sequences that sat out to the batch.
// Starts the workers on masks whose preceding tokens are now known. Sitting out never changes an answer,
// because a sample depends only on the sequence's own tokens (Scheduler).
void Engine::begin_masks() {
  std::vector<std::shared_ptr<TokenMask>> wanted;
  for (const auto& s : scheduler_.filtered()) {
    if (s->ahead == 0 && s->mask->begin(s->tokens, s->drafts_now())) {
      wanted.push_back(s->mask);
      continue;
    }
    if (!s->mask->made()) continue;
    s->sits_out = false;
    if (s->mask->status().ok()) continue;
    failed_.push_back({s->id, s->mask->status()});
    scheduler_.cancel(s->id);
  }
  mask_workers_.start(wanted);
}

// All masks of the step share one deadline.
void Engine::await_masks(InFlight* step) {
  const auto until = std::chrono::steady_clock::now() + kMaskWait;
  for (Chunk& chunk : step->chunks)
    if (chunk.masked()) {
      const TokenMask& mask = *chunk.sequence->mask;
      chunk.dropped = !mask_workers_.wait(mask, until) || !mask.status().ok();
    }
}

// Called when no step is in flight. Waits only briefly, because the caller may have requests or cancellations
// for the next step.
void Engine::await_any_mask() {
  std::vector<std::shared_ptr<TokenMask>> late;
  for (const auto& s : scheduler_.filtered())
    if (s->sits_out) late.push_back(s->mask);
  if (!late.empty()) mask_workers_.wait_for_any(late, std::chrono::steady_clock::now() + kMaskWait);
}

// Called after a step. Counts the sequences whose mask was late: the step dropped their sample or omitted
// them.
void Engine::count_sitting_out() {
  for (const auto& s : scheduler_.filtered()) steps_sat_out_ += s->sits_out ? 1 : 0;
}

}  // namespace sluice
