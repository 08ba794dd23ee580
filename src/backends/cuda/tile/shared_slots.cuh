// The slots of shared experts (ops/route_topk.h), which come after the chosen slots of every token. Their ids and weights are known before
// the launch. For problems without padding only: then every token has these slots, and their rows follow from the number of tokens.
#pragma once
#include "ops/fused/route_group.h"

namespace sluice::cuda::tile {

// A kernel parameter: the shared slots of all tokens.
struct SharedSlots {
  uint32_t count = 0, all = 0;  // slots per token: shared; shared and chosen
  int first_id = 0;
  float weight = 1;
};
inline SharedSlots shared_slots(const RouteTopk::Problem& p) {
  return {.count = static_cast<uint32_t>(p.shared_slots),
          .all = static_cast<uint32_t>(p.top_k + p.shared_slots),
          .first_id = static_cast<int>(p.scope == ExpertScope::kRange ? p.expert_count : p.experts),
          .weight = p.scale_here ? 1.f : static_cast<float>(1 / p.scale)};
}

// The number of tiles of all shared experts.
inline uint32_t shared_tiles(const RouteGroup::Problem& p) {
  const int64_t each = p.tile_rows > 0 ? (p.route.tokens + p.tile_rows - 1) / p.tile_rows : 0;
  return static_cast<uint32_t>(each * p.route.shared_slots);
}

// Writes the id and the weight of shared slot `which` of a token, if which < count.
__device__ __forceinline__ void put_shared(const SharedSlots& s, int32_t* ids, float* weights, uint32_t token,
                                           uint32_t which) {
  if (which >= s.count) return;
  const uint32_t slot = (token + 1) * s.all - s.count + which;
  ids[slot] = s.first_id + static_cast<int>(which);
  weights[slot] = s.weight;
}

// Also writes the slot's row. p: parameters of the kernel. first_row, first_tile: the first row and tile after those of all chosen experts.
template <class Parameters>
__device__ __forceinline__ void put_shared_row(const Parameters& p, uint32_t token, uint32_t which,
                                               uint32_t first_row, uint32_t first_tile) {
  const SharedSlots& s = p.shared;
  if (which >= s.count) return;
  put_shared(s, p.ids, p.weights, token, which);
  const uint32_t slot = (token + 1) * s.all - s.count + which, row = first_row + which * p.tokens + token;
  p.position[slot] = static_cast<int>(row);
  p.order[row] = static_cast<int>(slot);
  const int expert = s.first_id + static_cast<int>(which);
  if (token == 0) {
    p.row_count[expert] = static_cast<int>(p.tokens);
    p.row_begin[expert + 1] = static_cast<int>(row + p.tokens);
  }
  if (p.tiles_max == 0 || (token & p.tile_less_one) != 0) return;
  const uint32_t tiles_each = (p.tokens + p.tile_less_one) >> p.tile_shift;
  reinterpret_cast<int2*>(p.tiles)[first_tile + which * tiles_each + (token >> p.tile_shift)] =
      int2{expert, static_cast<int>(row)};
}

}  // namespace sluice::cuda::tile
