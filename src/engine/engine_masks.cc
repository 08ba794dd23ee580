// What Engine does with the masks of filters, which workers make.
#include <algorithm>

#include "engine/engine.h"

namespace sluice {

// Of masks that are made: requests whose filter failed end, and sequences that sat out come back. Of tokens that have become known:
// workers begin with the masks behind them. An answer is the same whether or not a sequence sits out steps, since what it draws
// depends on its own tokens alone (Scheduler).
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

// The time is one for all masks of the step.
void Engine::await_masks(InFlight* step) {
  const auto until = std::chrono::steady_clock::now() + kMaskWait;
  for (Chunk& chunk : step->chunks)
    if (chunk.masked()) {
      const TokenMask& mask = *chunk.sequence->mask;
      chunk.dropped = !mask_workers_.wait(mask, until) || !mask.status().ok();
    }
}

// While nothing else is to be done. Not for long, since the caller may have requests or cancellations for the next step.
void Engine::await_any_mask() {
  std::vector<std::shared_ptr<TokenMask>> late;
  for (const auto& s : scheduler_.filtered())
    if (s->sits_out) late.push_back(s->mask);
  if (!late.empty()) mask_workers_.wait_for_any(late, std::chrono::steady_clock::now() + kMaskWait);
}

// After a step: those whose draw it dropped, and those that it left out.
void Engine::count_sitting_out() {
  for (const auto& s : scheduler_.filtered()) steps_sat_out_ += s->sits_out ? 1 : 0;
}

}  // namespace sluice
