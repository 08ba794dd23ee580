// Expert MLP for very few tokens: both products and the weighted sums in one launch.
//
// The first product is as in fused_fewtokens.cuh. For the second, y is divided into slices: 16 features
// of all tokens. A CTA pair (a cluster of two) owns several slices and holds their sums for every slot.
// So biases, router weights and the sum over slots need neither global memory nor another launch.
//
// Units      One expert's weights for one slice, over all of k or over the CTA's half of k. The four consumer warps of a team form one
//            group or two. A group processes one unit at a time, and each of its warps has some k blocks of it (Cut in cards.h). A
//            stage of the team's ring holds one box of k blocks for each group.
// h          Stays in shared memory, in the part of the ring's stages that held rows of x. The consumer warps copy it.
// Sums       A unit's sum is split into segments, one per warp, by the shape alone. Each partial sum is sent to the CTA that writes its
//            features: eight of a slice's 16. That CTA adds them up in the order of segments, then of slots. So the result depends
//            neither on the assignment of units to warps nor on the rest of the batch.
#pragma once
#include "backends/cuda/experts/fused/fused_fewtokens.cuh"
#include "backends/cuda/tile/cluster.cuh"
#include "backends/cuda/tile/l2_policy.cuh"
#include "backends/cuda/tile/split_sum.cuh"
#include "backends/cuda/tile/tensor_copy.cuh"
#include "backends/cuda/tile/tensor_map.h"

namespace sluice::cuda {

namespace slices {

using fewtokens::kColumns;
using fewtokens::kThreads;

// The operands of ops/combine.h, which sums the experts' results into y.
struct Combined {
  const float* weights = nullptr;  // null: all 1
  const void *shared = nullptr, *residual = nullptr;
  void* y = nullptr;
  int64_t shared_stride = 0, residual_stride = 0, y_stride = 0;
  int y_f32 = 0;
  float scale = 1;
};

struct Parameters {
  CUtensorMap codes, scales;  // of the second product (tile/tensor_map.h: map_slabs)
  fewtokens::Parameters two;
  Combined combined;
  int tokens = 0, slots = 0;    // slots: per token
  uint32_t tokens_inverse = 0;  // ceil(2^16 / tokens)
  int lanes_log = 0;            // log2 of the smallest power of two >= slots
  int parts = 0;                // parts of 4 k blocks in a row of h
  uint32_t parts_inverse = 0;   // ceil(2^16 / parts)
  // The fields of the same names in Cut.
  int groups = 0, boxes = 0, split = 0;
  // slices that every cluster has; the number of clusters that have one more
  int slices_whole = 0, slices_over = 0;
};

using Weights = Mxfp4Weights;
using S = Stage<kColumns, Weights>;
static_assert(kRowBlocks == S::kXBytes * S::kSteps / tile::kSwizzledRowBytes && kRingStages == S::kStages);
constexpr int kSlabCodes = Weights::kCodeBytes / 4, kSlabScales = Weights::kScaleBytes / 4;
constexpr int kGroupCodes = S::kSteps * Weights::kCodeBytes / 2,
              kGroupScales = S::kSteps * Weights::kScaleBytes / 2;  // bytes per stage for each of two groups

struct alignas(128) Memory {
  fewtokens::Memory<Weights> few;  // its `sums` hold the segments' partial sums of the second product
  uint64_t sums_full;
};
static_assert(kSums == sizeof(StreamMemory<kColumns, kTeams, Weights>::sums) / sizeof(float));

template <bool kGated, bool kCut>
// Without early loads of other teams' partial sums: with one token, none is ready before it is needed.
struct Work : fewtokens::Work<Weights, kGated, kCut, false> {
  __device__ __forceinline__ const ExpertParameters& parameters(int) const { return this->p.product[0]; }
  __device__ __forceinline__ bool gated(int) const { return kGated; }
  __device__ __forceinline__ int64_t x_row(int, int row) const { return this->slots.token[0][row]; }
};

// A CTA's share of the second product.
struct Share {
  int from_last, clusters, rank, slices;

  __device__ __forceinline__ explicit Share(const Parameters& p)
      : clusters(static_cast<int>(gridDim.x) / 2), rank(static_cast<int>(blockIdx.x) % 2) {
    from_last = clusters - 1 - static_cast<int>(blockIdx.x) / 2;
    slices = p.slices_whole + (from_last < p.slices_over);
  }
  // Slices are dealt from the last cluster on, because the first CTAs have more of the first product.
  __device__ __forceinline__ int slice(int i) const { return from_last + i * clusters; }
};
// A group's current unit. The units are ordered by slice, and within a slice by entry of Slots.
struct Unit {
  int slice, entry, listed, apart;

  __device__ __forceinline__ Unit(const Parameters& p, const Share& s, int its_listed, int group)
      : slice(its_listed > 0 ? 0 : s.slices), entry(group), listed(its_listed), apart(kTeams * p.groups) {
    if (!p.split) entry += s.rank * apart, apart *= 2;
    wrap();
  }
  __device__ __forceinline__ void next() {
    entry += apart;
    wrap();
  }
  __device__ __forceinline__ void wrap() {
#pragma unroll 1
    while (listed > 0 && entry >= listed) entry -= listed, ++slice;
  }
};

// A thread of y's epilogue handles one row of a slice for one slot. The constructor, which runs in the prologue, loads all operands except the sums.
struct EpilogueThread {
  int slice, row, token, slot;  // slot: index within the token
  int feature;                  // may be past the last feature
  bool any = false;
  bool has = false;  // the slot has an expert
  float factor = 0, bias = 0, weight = 1, shared = 0, residual = 0;

  __device__ __forceinline__ EpilogueThread(const Parameters& p, const Share& s) {
    // the last team has the fewest units of the first product
    const uint32_t index = kThreads - 1 - threadIdx.x;
    const uint32_t all = index >> p.lanes_log, rows = all * p.tokens_inverse >> 16;
    slot = static_cast<int>(index - (all << p.lanes_log)), token = static_cast<int>(all - rows * p.tokens);
    row = static_cast<int>(rows % kRowsEach), slice = static_cast<int>(rows / kRowsEach);
    feature = s.slice(slice) * kRows + s.rank * kRowsEach + row;
    any = slice < s.slices && slot < p.slots;
    if (!any) return;
    const ExpertParameters& q = p.two.product[1];
    const int id = p.two.ids[token * p.slots + slot];
    has = id >= 0 && id < q.experts;
    if (has) {
      factor = tile::row_factor(__ldg(q.w_scale + id * q.scale_bytes + q.top_begin + feature));
      if (q.bias && feature < q.features)
        bias = load_bias(q, static_cast<int64_t>(id) * q.features + feature);
      if (p.combined.weights) weight = p.combined.weights[token * p.slots + slot];
    }
    if (slot != 0 || feature >= q.features) return;
    const auto number = [&](const void* from, int64_t stride) {
      const int64_t at = token * stride + feature;
      return p.combined.y_f32 ? static_cast<const float*>(from)[at]
                              : __bfloat162float(static_cast<const __nv_bfloat16*>(from)[at]);
    };
    if (p.combined.shared) shared = number(p.combined.shared, p.combined.shared_stride);
    if (p.combined.residual) residual = number(p.combined.residual, p.combined.residual_stride);
  }
};

template <bool kGated, int kBox, bool kCut>
struct Kernel {
  const Parameters& p;
  Memory& m;

  __device__ __forceinline__ Work<kGated, kCut> work(int team) const {
    return {{p.two, m.few, m.few.slots[team], fewtokens::rank_of(team)}};
  }
  // Address of a slot's row of h. Each stage holds one row, where it held rows of x during the first product.
  __device__ __forceinline__ uint32_t h_at(int slot) const {
    return tile::shared_address(m.few.stream.stage) + slot * S::kBytes;
  }
  __device__ __forceinline__ int group_warps() const { return p.groups == 1 ? 4 : 2; }
  // k blocks per unit. They are the same in all units of the CTA, so it needs only these k blocks of h. first_block(): the first of them.
  __device__ __forceinline__ int blocks() const { return group_warps() * p.boxes * kBox; }
  __device__ __forceinline__ int first_block(const Share& share) const {
    return p.split ? share.rank * blocks() : 0;
  }
  __device__ __forceinline__ int segments() const { return p.split ? 2 * group_warps() : group_warps(); }
  // Distance between the partial sums of adjacent slots. Odd, so that they are in different banks.
  __device__ __forceinline__ int sums_apart() const { return segments() | 1; }

  // The producer warps. The last team's producer fills its ring, then waits at the grid barrier on behalf of the CTA.
  __device__ __forceinline__ void fetch(int team) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const auto mine = work(team);
    StreamFetch<kColumns, kTeams, Work<kGated, kCut>, Weights> fetch(mine, m.few.stream, team);
    const int listed = mine.slots.template make<false>(p.two);
    const bool busy = fewtokens::fetch_first(mine, fetch, listed);
    if (!busy) mine.arrive(4);
    const Share share(p);
    const int id = lane < p.two.tokens_slots ? p.two.ids[lane] : -1;
    const uint32_t have = __ballot_sync(0xffffffffu, id >= 0 && id < p.two.product[1].experts);
    if (team == 0)
      tile::barrier_expect_by_warp(
          &m.sums_full, static_cast<uint32_t>(share.slices * segments() * kRowsEach * 4 * __popc(have)));
    Unit unit(p, share, listed, team * p.groups);
    bool grid_pending = team == kTeams - 1;
    int box = 0;
#pragma unroll 1
    for (int n = 0;; ++n) {
      const bool more = unit.slice < share.slices;
      if (grid_pending && (n == S::kStages || !more)) {
        grid_pending = false;
        mine.wait_for_x(1);
        if (lane == 0)
          tile::barrier_arrive(&m.few.grid_ready), tile::leave_grid_barrier(p.two.grid_words, gridDim.x);
        __syncwarp();
      }
      if (!more && n > 0) break;
      if (!busy && n == 1) wait_for_another_team();
      stage(fetch, share, unit, box, n, have);
      if (++box == p.boxes) box = 0, unit.next();
    }
  }

  // A team without units of the first product starts the second early. It loads only one
  // stage while other teams of the CTA are still busy, because more loads would delay theirs.
  __device__ __forceinline__ void wait_for_another_team() const {
    const volatile int* arrived = &m.few.arrived;
    while (*arrived < 2 * 4) {
    }
    __syncwarp();
  }

  // Fills a stage: for each group, one TMA box of codes and one of scales. In the first stage (n = 0) it also tells the
  // consumer warps that the first product has ended, the number of listed experts, and the mask of slots that have an expert.
  template <class Fetch>
  __device__ __forceinline__ void stage(Fetch& fetch, const Share& share, Unit unit, int box, int n,
                                        uint32_t have) const {
    const tile::RingPlace place = fetch.place;
    const uint32_t at = fetch.ring + place.stage * S::kBytes;
    const tile::Ring ring = m.few.stream.ring(fetch.team);
    const uint32_t counted = ring.full_of(place.stage);
    const int k = first_block(share) + box * group_warps() * kBox;
    uint32_t bytes = 0;
    ring.acquire_by_warp(place);
    if (n == 0) fetch.publish(at, {unit.listed, static_cast<int>(have), 0, 0});
#pragma unroll 1
    for (int g = 0; g < p.groups; ++g) {
      if (uniform(unit.slice) >= share.slices) break;
      const int slice = uniform(share.slice(unit.slice)),
                expert = uniform(work(fetch.team).slots.expert[unit.entry]);
      tile::copy_box_by(tile::read_once(), at + S::kCodes + g * kGroupCodes, p.codes,
                        slice % 4 * (kSlabCodes / 4), k, slice / 4, expert, counted);
      tile::copy_box_by(tile::read_once(), at + S::kScales + g * kGroupScales, p.scales,
                        slice % 4 * (kSlabScales / 4), k, slice / 4, expert, counted);
      bytes += group_warps() * kBox * (kSlabCodes + kSlabScales);
      ++unit.entry, unit.wrap();
    }
    tile::barrier_arrive(ring.expect_by_warp(place.stage, bytes));
    __syncwarp();
    fetch.place.step(S::kStages);
  }

  // Copies the rows of h of all slots that have an expert, restricted to the CTA's k blocks; columns past the width become zeros.
  __device__ __forceinline__ void fetch_h(const Share& share, uint32_t have, int warp) const {
    const ExpertParameters& q = p.two.product[1];
    const int lane = static_cast<int>(threadIdx.x % 32), first = first_block(share) * 64 + lane * 8;
    const auto chunk = [&](uint32_t index) {
      const uint32_t slot = index * p.parts_inverse >> 16, part = index - slot * p.parts;
      const int column = first + static_cast<int>(part) * 256;
      const bool is = (have >> slot & 1) && static_cast<int>(part) * 4 + lane / 8 < blocks();
      const bool in = column < q.width;
      return fewtokens::ChunkOfH{
          in ? q.x + slot * q.x_stride + column : q.x,
          h_at(static_cast<int>(slot)) + part * 512 + lane / 8 * 128 + (lane % 8 ^ slot % 8) * 16,
          is ? in : -1};
    };
    fewtokens::copy_h_chunks<kWarps>(m.few, warp, p.two.tokens_slots * p.parts, chunk);
  }

  // Waits for all partial sums, then writes y: a lane adds up the segments of a slot, then slot 0's lane gets the sum over slots.
  __device__ __forceinline__ void epilogue(const EpilogueThread& o) const {
    if (!__any_sync(0xffffffffu, o.any)) return;
    tile::barrier_wait_by_warp(&m.sums_full, 0);
    float value = 0;
    if (o.has) {
      const float* mine =
          &m.few.stream.sums[0][0][0][0] +
          ((o.slice * kRowsEach + o.row) * p.two.tokens_slots + o.token * p.slots + o.slot) * sums_apart();
      float sum = 0;
#pragma unroll 2
      for (int s = 0; s < segments(); s += 2) sum += mine[s], sum += mine[s + 1];
      value = o.weight * fmaf(sum, o.factor, o.bias);
    }
    // The lanes of a row are in reverse order of its slots: slot 0 is in the last lane.
    const int head = static_cast<int>(threadIdx.x % 32) | ((1 << p.lanes_log) - 1);
    float y = 0;
#pragma unroll 4
    for (int k = 0; k < p.slots; ++k) y += __shfl_sync(0xffffffffu, value, head - k);
    if (!o.any || o.slot != 0 || o.feature >= p.two.product[1].features) return;
    y *= p.combined.scale;
    if (p.combined.shared) y += o.shared;
    if (p.combined.residual) y += o.residual;
    const int64_t to = o.token * p.combined.y_stride + o.feature;
    if (p.combined.y_f32) {
      static_cast<float*>(p.combined.y)[to] = y;
    } else {
      static_cast<__nv_bfloat16*>(p.combined.y)[to] = __float2bfloat16_rn(y);
    }
  }

  // The consumer warps.
  __device__ __forceinline__ void multiply(int team, int w) const {
    const auto mine = work(team);
    const Share share(p);
    const EpilogueThread epilogue_thread(p, share);
    __syncwarp();
    const int lane = static_cast<int>(threadIdx.x % 32);
    tile::RingPlace place = stream_multiply<kColumns, kTeams>(mine, m.few.stream, team, w);
    const uint32_t ring = tile::shared_address(m.few.stream.stage[team]);
    const uint4 list_words = tile::load_shared(ring + place.stage * S::kBytes + S::kUnit);
    const int group = w / group_warps(), in_group = w % group_warps();
    const uint32_t codes = ring + S::kCodes + group * kGroupCodes + in_group * kBox * kSlabCodes + lane * 16,
                   scales = ring + S::kScales + group * kGroupScales + in_group * kBox * kSlabScales +
                            lane / 4 * 4;
    const tile::SplitInbox inbox{tile::shared_address(m.few.stream.sums), tile::shared_address(&m.sums_full)};
    const tile::SplitInbox to[2] = {inbox.of(0), inbox.of(1)};
    const int segment = in_group + (p.split ? share.rank * group_warps() : 0);
    Unit unit(p, share, uniform(static_cast<int>(list_words.x)), team * p.groups + group);
    fetch_h(share, list_words.y, team * 4 + w);
#pragma unroll 1
    for (; unit.slice < share.slices; unit.next()) {
      const int count = mine.slots.count[unit.entry];
      const uint8_t* order = mine.slots.order[unit.entry];
      const int slot = order[min(lane % 8, count - 1)];
      uint32_t h = h_at(slot) + (in_group * kBox * tile::kSwizzledRowBytes | (lane / 8 ^ slot % 8) * 16);
      float d[2][1][4] = {};
#pragma unroll 1
      for (int box = 0; box < p.boxes; ++box) {
        m.few.stream.ring(team).wait_by_warp(place);
        Weights::Unit unit;
        Weights::Operands<kColumns> of[2];
        const auto load = [&](int i) {
          const uint32_t stage = place.stage * S::kBytes, on = i * tile::kSwizzledRowBytes;
          of[i % 2].load(codes + stage + i * kSlabCodes, scales + stage + i * kSlabScales,
                         {h + on, (h ^ 64) + on});
        };
        load(0);
#pragma unroll
        for (int i = 0; i < kBox; ++i) {
          if (i + 1 < kBox) load(i + 1);
          of[i % 2].multiply(d, unit);
        }
        m.few.stream.ring(team).release(place.stage, have_loaded<Weights>(d));
        place.step(S::kStages);
        h += group_warps() * kBox * tile::kSwizzledRowBytes;
      }
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int column = lane % 4 * 2 + c;
        if (column >= count) break;
        const uint32_t at =
            static_cast<uint32_t>(((unit.slice * kRowsEach + lane / 4) * p.two.tokens_slots + order[column]) *
                                      sums_apart() +
                                  segment) *
            4;
#pragma unroll
        for (int half = 0; half < 2; ++half)
          to[half].store(at, d[0][0][half * 2 + c] + d[1][0][half * 2 + c]);
      }
    }
    epilogue(epilogue_thread);
  }
};

template <bool kGated, int kBox, bool kCut>
__global__ void __launch_bounds__(kThreads, 1) expert_mlp_slices(const __grid_constant__ Parameters p) {
  extern __shared__ uint8_t dynamic[];
  auto& m = *reinterpret_cast<Memory*>(dynamic + (128 - tile::shared_address(dynamic) % 128) % 128);
  const int warp = uniform(static_cast<int>(threadIdx.x / 32));
  if (warp < kTeams) m.few.stream.init(warp);
  if (threadIdx.x == 0) {
    m.few.arrived = 0;
    tile::barrier_init(&m.few.grid_ready, 1);
    tile::barrier_init(&m.few.h_full, kEpilogueThreads);
    tile::barrier_init(&m.sums_full, 1);
    tile::barrier_visible();
  }
  if (warp == kTeams) tile::prefetch_map(p.codes), tile::prefetch_map(p.scales);
  __syncthreads();
  tile::wait_for_previous();
  tile::release_next();
  const Kernel<kGated, kBox, kCut> kernel{p, m};
  if (warp < kTeams) {
    kernel.fetch(warp);
  } else {
    kernel.multiply((warp - kTeams) / 4, (warp - kTeams) % 4);
  }
}

}  // namespace slices
}  // namespace sluice::cuda
