// The experts of very few tokens, weights and sums of y included, in one launch.
//
// The first product is that of expert_fewtokens.cuh. In the second a cluster of two blocks owns slices of y: 16 features of all
// tokens. For each it has the sums of every slot, so that what follows them (biases, router weights, the sum over slots) needs
// no memory in between and no launch behind.
//
// Units      A sum is cut in segments of as many k blocks as the host says, the first half of them the first block's, the
//            others the second's. A warp's unit is a segment of one slice and one expert; the units of a block are dealt to
//            its warps in turn. A stage of a team's ring holds a box of k blocks of a unit of each of its four warps.
// h          Rows of h, of the block's half of the sum, stay in shared memory: where rows of x stood in the ring's stages.
// Sums       Each segment's go to the block that writes their features: eight of a slice's 16 each. It adds them up in
//            their order, so bits do not depend on who computed what, nor on what else is in the batch.
#pragma once
#include "backends/cuda/expert_fewtokens.cuh"
#include "backends/cuda/tile/cluster.cuh"
#include "backends/cuda/tile/tensor_copy.cuh"
#include "backends/cuda/tile/tensor_map.h"

namespace sluice::cuda {

namespace slices {

using fewtokens::kColumns;
using fewtokens::kTeams;
using fewtokens::kThreads;

constexpr int kRows = 16, kRowsEach = kRows / 2;        // features of a slice, and of a block's part
constexpr int kWarps = kTeams * 4, kEnders = kTeams * 32;  // warps that multiply, and threads that add up
constexpr int kTurnsMost = 4;                           // of those
constexpr int kBoxMost = 4;

struct Combined {
  const float* weights = nullptr;  // or nothing: 1
  const void *shared = nullptr, *residual = nullptr;
  void* y = nullptr;
  int64_t shared_stride = 0, residual_stride = 0, y_stride = 0;
  int y_f32 = 0;
  float scale = 1;
};

struct Parameters {
  CUtensorMap codes, scales;  // of the second product
  fewtokens::Parameters two;
  Combined combined;
  int tokens = 0, slots = 0;  // slots: of a token
  uint32_t tokens_inverse = 0;  // 2^16 over tokens, rounded up
  int lanes_log = 0;            // of a power of two that is not less than slots
  // How a sum is cut (Cut).
  int groups = 0, boxes = 0, split = 0;
  int slices_whole = 0, slices_over = 0;  // that every cluster has, and how many clusters have one more
};

using Weights = Mxfp4Weights;
using S = Stage<kColumns, Weights>;
constexpr int kPieces = S::kXBytes * S::kSteps / tile::kSwizzledRowBytes;  // of h, 128 bytes each, in a stage
constexpr int kPiecesMost = kPieces * S::kStages * kTeams;
constexpr int kSlabCodes = Weights::kCodeBytes / 4, kSlabScales = Weights::kScaleBytes / 4;
constexpr int kGroupCodes = S::kSteps * Weights::kCodeBytes / 2,
              kGroupScales = S::kSteps * Weights::kScaleBytes / 2;  // of one of two groups, in a stage

struct alignas(128) Memory {
  fewtokens::Memory<Weights> few;       // whose `sums` hold those of segments, later
  float2 finish[kTurnsMost * kEnders];  // a row's factor and bias
  float2 add[kTurnsMost * kEnders];     // shared and residual
  uint64_t prepared, h_full, sums_full;
};
constexpr int kSums = sizeof(StreamMemory<kColumns, kTeams, Weights>::sums) / sizeof(float);

template <bool kGated>
struct Work : fewtokens::Work<Weights, kGated> {
  __device__ __forceinline__ const ExpertParameters& parameters(int) const { return this->p.product[0]; }
  __device__ __forceinline__ bool gated(int) const { return kGated; }
  __device__ __forceinline__ int64_t x_row(int, int row) const { return this->slots.token[0][row]; }
};

// What a block has of the second product.
struct Share {
  int from_last, clusters, rank, slices;

  __device__ __forceinline__ explicit Share(const Parameters& p)
      : clusters(static_cast<int>(gridDim.x) / 2), rank(static_cast<int>(blockIdx.x) % 2) {
    from_last = clusters - 1 - static_cast<int>(blockIdx.x) / 2;
    slices = p.slices_whole + (from_last < p.slices_over);
  }
  // The blocks with the lowest numbers have most of the first product.
  __device__ __forceinline__ int slice(int i) const { return from_last + i * clusters; }
};
// A group's units, one after the other: slices, and in each the experts of the list.
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

// One who adds up: of a row of y's slice, one slot.
struct Ender {
  int slice, row, token, slot;  // slot: of the token

  __device__ __forceinline__ Ender(const Parameters& p, int index) {
    const uint32_t of = static_cast<uint32_t>(index), all = of >> p.lanes_log;
    const uint32_t rows = all * p.tokens_inverse >> 16;
    slot = static_cast<int>(of - (all << p.lanes_log));
    token = static_cast<int>(all - rows * p.tokens);
    row = static_cast<int>(rows % kRowsEach), slice = static_cast<int>(rows / kRowsEach);
  }
};

template <bool kGated, int kBox>
struct Kernel {
  const Parameters& p;
  Memory& m;

  __device__ __forceinline__ Work<kGated> work(int team) const {
    return {{p.two, m.few, m.few.slots[team]}};
  }
  __device__ __forceinline__ uint32_t h_at(int its_piece) const {
    const uint32_t piece = its_piece;
    return tile::shared_address(m.few.stream.stage) + piece / kPieces * S::kBytes +
           piece % kPieces * tile::kSwizzledRowBytes;
  }
  __device__ __forceinline__ int group_warps() const { return p.groups == 1 ? 4 : 2; }
  // k blocks of a unit, which are those of h that the block has of each slot, and the first of them.
  __device__ __forceinline__ int blocks() const { return group_warps() * p.boxes * kBox; }
  __device__ __forceinline__ int first_block(const Share& share) const {
    return p.split ? share.rank * blocks() : 0;
  }
  __device__ __forceinline__ int segments() const { return p.split ? 2 * group_warps() : group_warps(); }
  __device__ __forceinline__ int sums_apart() const { return segments() | 1; }  // of one slot's rows from each other
  __device__ __forceinline__ int enders(const Share& share) const {
    return share.slices * kRowsEach * p.tokens << p.lanes_log;
  }

  __device__ __forceinline__ void fetch(int team) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const auto mine = work(team);
    StreamFetch<kColumns, kTeams, Work<kGated>, Weights> fetch(mine, m.few.stream, team);
    const int listed = mine.slots.make(p.two);
    if (!fewtokens::fetch_product<0>(mine, fetch, team, listed)) mine.arrive(4);
    const Share share(p);
    if (team == 0) {
      const int rows = __reduce_add_sync(0xffffffffu, lane < listed ? mine.slots.count[lane] : 0);
      tile::barrier_expect_by_warp(&m.sums_full,
                                   static_cast<uint32_t>(share.slices * segments() * kRowsEach * 4 * rows));
    }
    Unit unit(p, share, listed, team * p.groups);
    bool met = false;
    int box = 0;
#pragma unroll 1
    for (int n = 0;; ++n) {
      const bool more = unit.slice < share.slices;
      if (!met && (n == S::kStages || !more)) {
        met = true;
        mine.wait_for_x(1);
        fetch_h(share, team);
      }
      if (!more && n > 0) break;
      stage(fetch, share, unit, box, n);
      if (++box == p.boxes) box = 0, unit.next();
    }
    if (lane == 0) tile::leave_meeting(p.two.meeting, gridDim.x * kTeams);
    finish(share);
  }

  // A box of each group. The first stage tells that the first product has no more, and how many experts are listed.
  template <class Fetch>
  __device__ __forceinline__ void stage(Fetch& fetch, const Share& share, Unit unit, int box, int n) const {
    const tile::RingPlace place = fetch.place;
    const uint32_t at = fetch.ring + place.stage * S::kBytes;
    uint64_t* full = &m.few.stream.full[fetch.team][place.stage];
    const uint32_t counted = tile::shared_address(full);
    const int k = first_block(share) + box * group_warps() * kBox;
    uint32_t bytes = 0;
    tile::barrier_wait_by_warp(&m.few.stream.empty[fetch.team][place.stage], place.parity ^ 1);
    if (n == 0) fetch.tell(at, {unit.listed, 0, 0, 0});
#pragma unroll 1
    for (int g = 0; g < p.groups; ++g) {
      if (uniform(unit.slice) >= share.slices) break;
      const int slice = uniform(share.slice(unit.slice)), expert = uniform(work(fetch.team).slots.expert[unit.entry]);
      tile::copy_box(at + S::kCodes + g * kGroupCodes, p.codes, slice % 4 * (kSlabCodes / 4), k, slice / 4, expert,
                     counted);
      tile::copy_box(at + S::kScales + g * kGroupScales, p.scales, slice % 4 * (kSlabScales / 4), k, slice / 4,
                     expert, counted);
      bytes += group_warps() * kBox * (kSlabCodes + kSlabScales);
      ++unit.entry, unit.wrap();
    }
    tile::barrier_expect_by_warp(full, bytes);
    tile::barrier_arrive(full);
    __syncwarp();
    fetch.place.step(S::kStages);
  }

  // What the end needs beside sums. By the warps that multiply, before they have anything to do: the last team first.
  __device__ __forceinline__ void prepare(const Share& share) const {
    const ExpertParameters& q = p.two.product[1];
    const int all = enders(share);
#pragma unroll 1
    for (int index = kThreads - 1 - static_cast<int>(threadIdx.x); index < all; index += kWarps * 32) {
      const Ender o(p, index);
      if (o.slot >= p.slots) continue;
      const int slice = share.slice(o.slice);
      const int row = slice * kRows + share.rank * kRowsEach + o.row;  // the feature, or one of the padding
      const int id = p.two.ids[o.token * p.slots + o.slot];
      float2 finish = {0, 0}, add = {0, 0};
      if (id >= 0 && id < q.experts) {
        finish.x = tile::row_factor(__ldg(q.w_scale + id * q.scale_bytes + q.top_begin + row));
        if (q.bias && row < q.features) finish.y = load_bias(q, static_cast<int64_t>(id) * q.features + row);
      }
      if (o.slot == 0 && row < q.features) {
        const auto number = [&](const void* from, int64_t stride) {
          const int64_t at = o.token * stride + row;
          return p.combined.y_f32 ? static_cast<const float*>(from)[at]
                                  : __bfloat162float(static_cast<const __nv_bfloat16*>(from)[at]);
        };
        if (p.combined.shared) add.x = number(p.combined.shared, p.combined.shared_stride);
        if (p.combined.residual) add.y = number(p.combined.residual, p.combined.residual_stride);
      }
      m.finish[index] = finish, m.add[index] = add;
    }
    tile::arrive_by_warp(tile::shared_address(&m.prepared));
  }

  // Rows of h of every slot that has an expert, the block's k blocks of them; zeros beyond the width.
  __device__ __forceinline__ void fetch_h(const Share& share, int team) const {
    const ExpertParameters& q = p.two.product[1];
    const int each = blocks(), first = first_block(share) * 64, lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll 1
    for (int slot = team; slot < p.two.tokens_slots; slot += kTeams) {
      const int id = p.two.ids[slot];
      if (id < 0 || id >= q.experts) continue;
      const uint32_t chunk = (lane % 8 ^ slot % 8) * 16;
      const int column = first + lane * 8;
      const __nv_bfloat16* h = q.x + slot * q.x_stride + column;
      const int piece = slot * each + lane / 8;
#pragma unroll 4
      for (int i = 0; i < each; i += 4) {
        if (i + lane / 8 >= each) break;
        const bool in = column + i * 64 < q.width;
        tile::copy_16(h_at(piece + i) + chunk, in ? h + i * 64 : q.x, in);
      }
    }
    tile::arrive_after_copies(tile::shared_address(&m.h_full));
  }

  // y, once all sums are here: a lane adds up a slot's segments, then a row's slots.
  __device__ __forceinline__ void finish(const Share& share) const {
    const int apart = sums_apart(), segments = this->segments(), features = p.two.product[1].features;
    const int all = enders(share);
    const float* sums = &m.few.stream.sums[0][0][0][0];
    tile::barrier_wait_by_warp(&m.prepared, 0);
    tile::barrier_wait_by_warp(&m.sums_full, 0);
#pragma unroll 1
    for (int base = 0; base < all; base += kEnders) {
      const int index = base + static_cast<int>(threadIdx.x);
      const Ender o(p, index);
      const bool is = index < all && o.slot < p.slots;
      const int slot = o.token * p.slots + o.slot, id = is ? p.two.ids[slot] : -1;
      const bool has = id >= 0 && id < p.two.product[1].experts;
      float value = 0, weight = 0;
      if (has) {
        const float* mine = sums + ((o.slice * kRowsEach + o.row) * p.two.tokens_slots + slot) * apart;
        float sum = 0;
#pragma unroll 2
        for (int s = 0; s < segments; s += 2) sum += mine[s], sum += mine[s + 1];
        value = fmaf(sum, m.finish[index].x, m.finish[index].y);
        weight = p.combined.weights ? p.combined.weights[slot] : 1.f;
      }
      const uint32_t with = __ballot_sync(0xffffffffu, has);
      const int head = static_cast<int>(threadIdx.x % 32) >> p.lanes_log << p.lanes_log;
      float y = 0;
#pragma unroll 4
      for (int k = 0; k < p.slots; ++k) {
        const float v = __shfl_sync(0xffffffffu, value, head + k), w = __shfl_sync(0xffffffffu, weight, head + k);
        y = with >> (head + k) & 1 ? fmaf(w, v, y) : y;
      }
      const int feature = share.slice(o.slice) * kRows + share.rank * kRowsEach + o.row;
      if (!is || o.slot != 0 || feature >= features) continue;
      y *= p.combined.scale;
      if (p.combined.shared) y += m.add[index].x;
      if (p.combined.residual) y += m.add[index].y;
      const int64_t to = o.token * p.combined.y_stride + feature;
      if (p.combined.y_f32) {
        static_cast<float*>(p.combined.y)[to] = y;
      } else {
        static_cast<__nv_bfloat16*>(p.combined.y)[to] = __float2bfloat16_rn(y);
      }
    }
  }

  __device__ __forceinline__ void multiply(int team, int w) const {
    const auto mine = work(team);
    const Share share(p);
    prepare(share);
    const int lane = static_cast<int>(threadIdx.x % 32);
    tile::RingPlace place = stream_multiply<kColumns, kTeams>(mine, m.few.stream, team, w);
    const uint32_t ring = tile::shared_address(m.few.stream.stage[team]);
    const int listed = static_cast<int>(tile::load_shared_word(ring + place.stage * S::kBytes + S::kUnit));
    const int each = blocks(), group = w / group_warps(), in_group = w % group_warps();
    const uint32_t codes = ring + S::kCodes + group * kGroupCodes + in_group * kBox * kSlabCodes + lane * 16,
                   scales = ring + S::kScales + group * kGroupScales + in_group * kBox * kSlabScales + lane / 4 * 4;
    const uint32_t sums = tile::shared_address(m.few.stream.sums), counted = tile::shared_address(&m.sums_full);
    const uint32_t to[2] = {tile::remote_address(sums, 0), tile::remote_address(sums, 1)},
                   counts[2] = {tile::remote_address(counted, 0), tile::remote_address(counted, 1)};
    const int segment = in_group + (p.split ? share.rank * group_warps() : 0);
    Unit unit(p, share, uniform(listed), team * p.groups + group);
    tile::barrier_wait_by_warp(&m.h_full, 0);
#pragma unroll 1
    for (; unit.slice < share.slices; unit.next()) {
      const int count = mine.slots.count[unit.entry];
      const uint8_t* order = mine.slots.order[unit.entry];
      const int slot = order[min(lane % 8, count - 1)];
      const uint32_t chunk = static_cast<uint32_t>(lane / 8 ^ slot % 8) * 16;
      int piece = slot * each + in_group * kBox;
      float d[2][1][4] = {};
#pragma unroll 1
      for (int box = 0; box < p.boxes; ++box) {
        tile::barrier_wait_by_warp(&m.few.stream.full[team][place.stage], place.parity);
        Weights::Operands<kColumns> of[2];
        const auto load = [&](int i) {
          const uint32_t x = h_at(piece + i) + chunk, stage = place.stage * S::kBytes;
          of[i % 2].load(codes + stage + i * kSlabCodes, scales + stage + i * kSlabScales, {x, x ^ 64});
        };
        load(0);
#pragma unroll
        for (int i = 0; i < kBox; ++i) {
          if (i + 1 < kBox) load(i + 1);
          of[i % 2].multiply(d);
        }
        tile::arrive_by_warp(tile::shared_address(&m.few.stream.empty[team][place.stage]));
        place.step(S::kStages);
        piece += group_warps() * kBox;
      }
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int column = lane % 4 * 2 + c;
        if (column >= count) break;
        const uint32_t at = static_cast<uint32_t>(
            ((unit.slice * kRowsEach + lane / 4) * p.two.tokens_slots + order[column]) * sums_apart() + segment) * 4;
#pragma unroll
        for (int half = 0; half < 2; ++half)
          tile::store_remote(to[half] + at, d[0][0][half * 2 + c] + d[1][0][half * 2 + c], counts[half]);
      }
    }
  }
};

template <bool kGated, int kBox>
__global__ void __launch_bounds__(kThreads, 1) expert_mlp(const __grid_constant__ Parameters p) {
  extern __shared__ uint8_t dynamic[];
  auto& m = *reinterpret_cast<Memory*>(dynamic + (128 - tile::shared_address(dynamic) % 128) % 128);
  const int warp = uniform(static_cast<int>(threadIdx.x / 32));
  if (warp < kTeams) m.few.stream.init(warp);
  if (threadIdx.x == 0) {
    m.few.arrived = 0;
    tile::barrier_init(&m.prepared, kWarps);
    tile::barrier_init(&m.h_full, kEnders);
    tile::barrier_init(&m.sums_full, 1);
    tile::barrier_visible();
  }
  if (warp == kTeams) tile::prefetch_map(p.codes), tile::prefetch_map(p.scales);
  __syncthreads();
  tile::wait_for_previous();
  tile::release_next();
  const Kernel<kGated, kBox> kernel{p, m};
  if (warp < kTeams) {
    kernel.fetch(warp);
  } else {
    kernel.multiply((warp - kTeams) / 4, (warp - kTeams) % 4);
  }
}

// How a sum is cut, by the shape alone: the four warps of a team are one group or two, a group has a unit at a time, as boxes
// of `box` k blocks for each of its warps. split: the blocks of a cluster have half of each sum each; else each has all
// of every other unit.
struct Cut {
  int box = 0, groups = 0, boxes = 0, split = 0;
  int group_warps() const { return 4 / groups; }
  int segments() const { return group_warps() << split; }
  int blocks() const { return group_warps() * boxes * box; }  // of a unit
};
inline Cut cut_of(int k_blocks, int slots, int slices_most) {
  Cut best;
  double least = 0;
  for (int split : {0, 1}) {
    for (int groups : {1, 2}) {
      for (int box : {3, 4}) {
        Cut cut{.box = box, .groups = groups, .boxes = 1, .split = split};
        const int each = cut.blocks() << split;
        cut.boxes = (k_blocks + each - 1) / each;
        const int of_cluster = kTeams * groups * (2 - split), units = slices_most * slots;
        const double clocks = (units + of_cluster - 1) / of_cluster * (cut.boxes * box + 1.2);  // in k blocks
        // A group without a unit leaves; its team goes on with a ring's stages at most.
        if (groups == 2 && cut.boxes > S::kStages) continue;
        if (least > 0 && clocks >= least) continue;
        least = clocks, best = cut;
      }
    }
  }
  return best;
}

struct Plan {
  Cut cut;
  int slices = 0, clusters = 0, slices_most = 0, lanes_log = 0;

  Plan(const ExpertMlp::Problem& p, int sms)
      : slices(static_cast<int>((p.hidden + kRows - 1) / kRows)), clusters(std::max(sms / 2, 1)) {
    slices_most = (slices + clusters - 1) / clusters;
    cut = cut_of(static_cast<int>((p.intermediate + kFragmentWidth - 1) / kFragmentWidth),
                 static_cast<int>(p.slots), slices_most);
    while (1 << lanes_log < p.slots) ++lanes_log;
  }
  int h_pieces(const ExpertMlp::Problem& p) const {
    return static_cast<int>(ExpertMlp::rows(p)) * cut.blocks();
  }
  int sums(const ExpertMlp::Problem& p) const {
    return slices_most * kRowsEach * static_cast<int>(ExpertMlp::rows(p)) * (cut.segments() | 1);
  }
  int enders(const ExpertMlp::Problem& p) const {
    return slices_most * kRowsEach * static_cast<int>(p.tokens) << lanes_log;
  }
};

}  // namespace slices
}  // namespace sluice::cuda
