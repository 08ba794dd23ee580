// The down projection of fused_fewtokens.cuh for row blocks of few k blocks. There the overhead per work unit
// (stream.cuh) would take as many instructions as the sum itself. As in stream_short.cuh, each team has a
// contiguous range of row blocks, sorted by expert. All rows of h are in shared memory, in the part of the
// ring's stages that held rows of x, so a transfer loads only weights: one or two stages per row block.
#pragma once
#include "backends/cuda/experts/fused/fused_fewtokens_work.cuh"
#include "backends/cuda/experts/stream/stream_short.cuh"

namespace sluice::cuda {
namespace fewtokens {

template <bool kGated>
struct ShortSecond {
  using Weights = Mxfp4Weights;
  using S = Stage<kColumns, Weights>;
  static constexpr int kRowsBytes = S::kCodes;  // bytes of a stage that are used for rows of h
  static_assert(kTeams * S::kStages * (kRowsBytes / (kShortMax * tile::kSwizzledRowBytes)) >= kSlotsMax);
  const Work<Weights, kGated, true>& work;

  __device__ __forceinline__ const ExpertParameters& q() const { return work.p.product[1]; }
  __device__ __forceinline__ int row_bytes() const { return q().k_blocks * tile::kSwizzledRowBytes; }
  __device__ __forceinline__ uint32_t h_at(int slot) const {
    const int each = kRowsBytes / row_bytes();
    return tile::shared_address(work.m.stream.stage) + slot / each * S::kBytes + slot % each * row_bytes();
  }
  // k blocks in the first of the one or two stages of a row block.
  __device__ __forceinline__ int first_steps() const {
    return q().k_blocks <= S::kSteps ? q().k_blocks : (q().k_blocks + 1) / 2;
  }

  // The producer warps. The last team's producer fills its ring, then waits at the grid barrier on behalf of the CTA.
  __device__ __forceinline__ void fetch(int team) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    auto& m = work.m;
    StreamFetch<kColumns, kTeams, Work<Weights, kGated, true>, Weights> fetch(work, m.stream, team);
    const int listed = work.slots.template make<true>(work.p);
    if (!fetch_first(work, fetch, listed)) work.arrive(4);
    const Deal deal(listed * q().row_blocks);
    const int begin = deal.begin(work.rank), end = deal.begin(work.rank + 1);
    bool grid_pending = team == kTeams - 1;
    const auto wait_for_grid = [&] {
      grid_pending = false;
      work.wait_for_x(1);
      if (lane == 0)
        tile::barrier_arrive(&m.grid_ready), tile::leave_grid_barrier(work.p.grid_words, gridDim.x);
      __syncwarp();
    };
    int at = begin, entry = begin / q().row_blocks, block = begin - entry * q().row_blocks, n = 0;
    tile::RingPlace& place = fetch.place;
    const auto publish = [&] {
      if (n > 0) return;
      if (lane == 0)
        tile::store_shared(fetch.ring + place.stage * S::kBytes + S::kUnit,
                           make_uint4(static_cast<uint32_t>(begin), static_cast<uint32_t>(end), 0, 0));
      __syncwarp();
    };
#pragma unroll 1
    while (at < end) {
      const int run = min(end - at, q().row_blocks - block), expert = uniform(work.slots.expert[entry]);
      const int64_t first = static_cast<int64_t>(uniform(block)) * q().k_blocks;
      const uint8_t* codes = q().w + expert * q().w_bytes + first * Weights::kCodeBytes;
      const uint8_t* scales = q().w_scale + expert * q().scale_bytes + first * Weights::kScaleBytes;
#pragma unroll 1
      for (int left = run * q().k_blocks, of_block = q().k_blocks; left > 0;) {
        const int steps =
            uniform(of_block > first_steps() || of_block == q().k_blocks ? first_steps() : of_block);
        if (grid_pending && n == S::kStages) wait_for_grid();
        m.stream.ring(team).acquire_by_warp(place);
        publish();
        const uint32_t full = m.stream.ring(team).expect_by_warp(
            place.stage, static_cast<uint32_t>(steps * (Weights::kCodeBytes + Weights::kScaleBytes)));
        fetch.issue(place.stage, codes, scales, steps);
        tile::barrier_arrive(full);
        __syncwarp();
        codes += steps * Weights::kCodeBytes, scales += steps * Weights::kScaleBytes;
        asm volatile("" : "+l"(codes), "+l"(scales));
        place.step(S::kStages), ++n;
        left -= steps, of_block -= steps;
        if (of_block == 0) of_block = q().k_blocks;
      }
      at += run, block = 0, ++entry;
    }
    if (n == 0) {
      m.stream.ring(team).acquire_by_warp(place);
      publish();
      tile::barrier_arrive(m.stream.ring(team).expect_by_warp(place.stage, 0));
    }
    if (grid_pending) wait_for_grid();
  }

  // Copies the rows of h of all slots that have an expert; columns past the width become zeros.
  __device__ __forceinline__ void fetch_h(int thread) const {
    const int chunks = q().k_blocks * 8, all = work.p.tokens_slots * chunks;
    const auto chunk = [&](int index) {
      const int slot = index / chunks, at = index - slot * chunks;
      const bool is = index < all && work.slots.have[slot / 32] >> slot % 32 & 1, in = at * 8 < q().width;
      return ChunkOfH{in ? q().x + slot * q().x_stride + at * 8 : q().x,
                      h_at(slot) + at / 8 * 128 + (at % 8 ^ slot % 8) * 16, is ? in : -1};
    };
    copy_h_chunks<kTeams * 128>(work.m, thread, all, chunk);
  }

  template <int kCount>
  __device__ __forceinline__ static void multiply_stage(float (&d)[2][1][4], uint32_t codes, uint32_t scales,
                                                        uint32_t h) {
    Weights::Unit unit;
    Weights::Operands<kColumns> of[2];
    const auto load = [&](int i) {
      const uint32_t on = i * tile::kSwizzledRowBytes;
      of[i % 2].load(codes + i * Weights::kCodeBytes, scales + i * Weights::kScaleBytes,
                     {h + on, (h ^ 64) + on});
    };
    load(0);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i + 1 < kCount) load(i + 1);
      of[i % 2].multiply(d, unit);
    }
  }

  // Run by the consumer warps after the first product. place: the stage in which the producer wrote this team's range.
  __device__ __forceinline__ void multiply(int team, int slab, tile::RingPlace place) const {
    auto& m = work.m;
    const int lane = static_cast<int>(threadIdx.x % 32);
    const uint32_t ring = tile::shared_address(m.stream.stage[team]);
    const uint4 range_words = tile::load_shared(ring + place.stage * S::kBytes + S::kUnit);
    int at = uniform(static_cast<int>(range_words.x));
    const int end = uniform(static_cast<int>(range_words.y)), row = slab * 16 + lane / 4;
    int entry = at / q().row_blocks, block = at - entry * q().row_blocks;
    const uint32_t codes = ring + S::kCodes + Weights::codes_at(slab, lane),
                   scales = ring + S::kScales + Weights::scales_at(slab, lane);
    const int first = first_steps(), second = q().k_blocks - first;
    fetch_h((team * 4 + slab) * 32 + lane);
#pragma unroll 1
    while (at < end) {
      const int count = work.slots.count[entry], run = uniform(min(end - at, q().row_blocks - block));
      const StreamUnit unit = {uniform(work.slots.expert[entry]), block, entry * kColumns,
                               count * StreamUnit::kRow};
      ShortRows<kColumns> rows(work, q(), unit, row);
      const int slot = work.slots.order[entry][min(lane % 8, count - 1)];
      uint32_t h = h_at(slot) + (lane / 8 ^ slot % 8) * 16;
      keep(h);
      const uint8_t* tops = q().w_scale + unit.expert * q().scale_bytes + q().top_begin + block * 64 + row;
      uint32_t top[2], next[2] = {__ldg(tops), __ldg(tops + 8)};
#pragma unroll 1
      for (int left = run; left > 0; --left) {
        uint32_t bias[2] = {};
        rows.load(q(), bias);
#pragma unroll
        for (int i = 0; i < 2; ++i) top[i] = next[i];
        if (left > 1) {
          tops += kFragmentRows;
#pragma unroll
          for (int i = 0; i < 2; ++i) next[i] = __ldg(tops + 8 * i);
        }
        float d[2][1][4] = {}, sum[4];
        uint32_t h_now = h;
        int steps = first;
#pragma unroll 1
        do {
          m.stream.ring(team).wait_by_warp(place);
          const uint32_t stage = place.stage * S::kBytes;
          if (steps == 3) {
            multiply_stage<3>(d, codes + stage, scales + stage, h_now);
          } else if (steps == 4) {
            multiply_stage<4>(d, codes + stage, scales + stage, h_now);
          } else if (steps == 2) {
            multiply_stage<2>(d, codes + stage, scales + stage, h_now);
          } else {
            multiply_stage<1>(d, codes + stage, scales + stage, h_now);
          }
          m.stream.ring(team).release(place.stage, have_loaded<Weights>(d));
          place.step(S::kStages);
          h_now += first * tile::kSwizzledRowBytes;
          steps = h_now - h == static_cast<uint32_t>(first) * tile::kSwizzledRowBytes ? second : 0;
        } while (steps > 0);
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[i] = d[0][0][i] + d[1][0][i];
        rows.template write<Weights>(q(), sum, top, bias);
      }
      at += run, block = 0, ++entry;
    }
  }
};

}  // namespace fewtokens
}  // namespace sluice::cuda
