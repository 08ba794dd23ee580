// Adds up a token's row; shared by combine_rows_sm90.cu and combine_norm_rows_sm90.cu.
#pragma once
#include "backends/cuda/row_alignment.h"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/vector.cuh"
#include "ops/combine.h"

namespace sluice::cuda::combining {

constexpr int kWide = 8;  // columns per 16-byte access of bf16
constexpr int kSlotsMax = 64;

struct Parameters {
  const void *g, *bias, *shared, *residual;
  void* y;
  const int32_t *position, *ids;
  const float* weights;
  int64_t g_stride, shared_stride, residual_stride, y_stride;  // elements between rows
  int hidden, slots;
  int64_t rows, experts;
  float scale;
  int settled, by_slot;  // by_slot: row s of g belongs to slot s, and `position` has expert ids
};

// A slot that has a row.
struct Slot {
  int64_t row, expert;
  float weight;
};
// The slots of a token that have rows, in their order. Of a rank's experts few slots of a token may be.
struct Slots {
  Slot of[kSlotsMax];
  int count;
};

// Finds the slots of a token for all threads of a CTA, and waits for the previous launch.
__device__ __forceinline__ void find_slots(const Parameters& p, int64_t token, Slots& slots) {
  if (!p.settled) tile::wait_for_previous();
  const int lane = static_cast<int>(threadIdx.x);
  if (lane < 32) {
    int count = 0;
    for (int first = 0; first < p.slots; first += 32) {
      Slot mine{.row = -1, .expert = -1, .weight = 1.f};
      if (first + lane < p.slots) {
        const int64_t flat = token * p.slots + first + lane;
        const int64_t at = p.position[flat], row = !p.by_slot ? at : at >= 0 && at < p.experts ? flat : -1;
        mine.row = row < p.rows ? row : -1;
        if (p.ids) mine.expert = p.ids[flat];
        if (p.weights) mine.weight = p.weights[flat];
        if (mine.expert >= p.experts) mine.expert = -1;
      }
      const unsigned found = __ballot_sync(0xffffffffu, mine.row >= 0);
      if (mine.row >= 0) slots.of[count + __popc(found & ((1u << lane) - 1))] = mine;
      count += __popc(found);
    }
    if (lane == 0) slots.count = count;
  }
  if (p.settled) tile::wait_for_previous();
  __syncthreads();
}

// Computes N adjacent columns of a token's y. kAtOnce: slots whose rows are loaded at once.
template <int N, int kAtOnce, class G, class B, class Y>
__device__ __forceinline__ void sum_slots(const Parameters& p, int64_t token, const Slots& slots, int column,
                                          float (&sum)[N]) {
#pragma unroll
  for (float& s : sum) s = 0;
  for (int k = 0; k < slots.count; k += kAtOnce) {
    float value[kAtOnce][N];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (k + j < slots.count)
        tile::load(value[j], static_cast<const G*>(p.g) + slots.of[k + j].row * p.g_stride + column);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (k + j >= slots.count) break;
      const Slot slot = slots.of[k + j];
      if (slot.expert >= 0) {
        float bias[N];
        tile::load(bias, static_cast<const B*>(p.bias) + slot.expert * p.hidden + column);
#pragma unroll
        for (int i = 0; i < N; ++i) value[j][i] += bias[i];
      }
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] += slot.weight * value[j][i];
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) sum[i] *= p.scale;
  const auto add = [&](const void* from, int64_t stride) {
    if (!from) return;
    float value[N];
    tile::load(value, static_cast<const Y*>(from) + token * stride + column);
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] += value[i];
  };
  add(p.shared, p.shared_stride);
  add(p.residual, p.residual_stride);
}

inline bool all_wide(const Combine::Problem& p, const Combine::Args& a) {
  return p.hidden % kWide == 0 && wide_rows(a.g) && wide_rows(a.bias) && wide_rows(a.shared) &&
         wide_rows(a.residual) && wide_rows(a.y);
}

inline Parameters parameters_of(const Combine::Problem& p, const Combine::Args& a, bool by_slot) {
  return {.g = a.g.data,
          .bias = a.bias.data,
          .shared = a.shared.data,
          .residual = a.residual.data,
          .y = a.y.data,
          .position = a.position.as<const int32_t>(),
          .ids = a.ids.as<const int32_t>(),
          .weights = a.weights.as<const float>(),
          .g_stride = a.g.stride[0],
          .shared_stride = a.shared.stride[0],
          .residual_stride = a.residual.stride[0],
          .y_stride = a.y.stride[0],
          .hidden = static_cast<int>(p.hidden),
          .slots = static_cast<int>(p.slots),
          .rows = p.rows,
          .experts = p.experts,
          .scale = static_cast<float>(p.scale),
          .settled = p.settled,
          .by_slot = by_slot};
}

}  // namespace sluice::cuda::combining
