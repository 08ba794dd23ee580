// The stream kernel for short sums (teams and units as in stream.cuh). If a row block
// has few k blocks, the overhead per unit would take longer than the unit's products.
//
// So each team has a contiguous range of the list of units and processes it in runs. A run is consecutive row blocks of one expert x
// the same rows of x. The producer warp looks up a run and sends it to the consumer warps once; the run's rows of x stay in shared
// memory over all of k. Weights stream through the ring. A stage holds the codes, scales and largest scales of a whole row block, so
// that waits are few. With bf16, which is bandwidth-bound, a stage holds one k block. A lane computes its addresses in y once per run.
#pragma once
#include "backends/cuda/experts/stream/stream_list.cuh"

namespace sluice::cuda {

constexpr int kShortStagesMax = 8;     // per team
constexpr int kShortBytes = 450 << 7;  // per team: rows of x of two runs, and the ring
constexpr int kRunChunked = 4;         // maximum number of row blocks of a run if the expert has more rows
                                       // than a run

// Bytes of a stage: codes, scales and largest scales of a row block, in this order; for bf16, one k block.
template <class Weights>
__host__ __device__ constexpr int short_stage_bytes(int k_blocks) {
  return Weights::kScaled ? k_blocks * (Weights::kCodeBytes + Weights::kScaleBytes) + 128
                          : Weights::kCodeBytes;
}
template <int N, class Weights>
__host__ __device__ constexpr int short_stages(int k_blocks) {
  const int ring = kShortBytes - 2 * k_blocks * N * tile::kSwizzledRowBytes;
  const int stages = ring / short_stage_bytes<Weights>(k_blocks);
  return stages < kShortStagesMax ? stages : kShortStagesMax;
}
// True if the ring has room for two stages, so that one loads during the products of the other; for bf16, three stages, which keep enough bytes in flight.
template <int N, class Weights>
constexpr bool is_short(int64_t k_blocks) {
  return k_blocks <= kSplits * kSplitSteps &&
         short_stages<N, Weights>(static_cast<int>(k_blocks)) >= (Weights::kScaled ? 2 : 3);
}

template <int N, int kTeams>
struct alignas(128) ShortMemory {
  uint8_t bytes[kTeams][kShortBytes];
  uint4 run[kTeams][2];  // for each of the two buffers of rows of x: the ShortRun that uses it
  uint64_t full[kTeams][kShortStagesMax], empty[kTeams][kShortStagesMax];
  uint64_t x_full[kTeams][2], x_empty[kTeams][2];

  // One base address for the full and empty barriers of the ring takes one register.
  __device__ __forceinline__ tile::Ring weights(int team) const {
    const uint32_t first = tile::shared_address(full[team]);
    return {first, first + static_cast<uint32_t>(sizeof full)};
  }
  __device__ __forceinline__ tile::Ring runs(int team) const {
    const uint32_t first = tile::shared_address(x_full[team]);
    return {first, first + static_cast<uint32_t>(sizeof x_full)};
  }
  // Called by the first kTeams warps of a CTA, before __syncthreads().
  __device__ __forceinline__ void init(int warp) {
#pragma unroll
    for (int s = 0; s < kShortStagesMax; ++s) weights(warp).init_by_warp(s, 1, kTeamLanes);
#pragma unroll
    for (int i = 0; i < 2; ++i) runs(warp).init_by_warp(i, 32 + 1, kTeamLanes);
    tile::barrier_visible();
  }
};

// A run: consecutive row blocks of one expert x consecutive rows of the list sorted by expert.
struct ShortRun {
  int expert, block, blocks, row, rows;
  // rows and blocks share one word, rows + kBlock * blocks; 0: no more runs
  static constexpr int kBlock = 64;

  // The run that begins at unit `within` of an expert, with at most `most` units. The expert's all_rows
  // rows form chunks of up to N, and it has row_blocks units per chunk. If there are several chunks, a
  // run has at most kRunChunked row blocks, so that the next chunk finds their weights in L2.
  template <int N>
  static __device__ __forceinline__ ShortRun of(const ExpertParameters& p, int expert, int all_rows,
                                                int begin, int within, int most) {
    const int chunks = ceil_div(all_rows, N), group = chunks > 1 ? kRunChunked : p.row_blocks;
    const int first = within / (chunks * group) * group, in_group = min(group, p.row_blocks - first);
    const int rest = within - first * chunks, chunk = rest / in_group, block = rest - chunk * in_group;
    const int each = (ceil_div(all_rows, chunks) + 7) & ~7;
    return {expert, uniform(first + block), uniform(min(in_group - block, most)),
            uniform(begin + chunk * each), uniform(min(each, all_rows - chunk * each))};
  }
};

// A team's producer warp.
template <int N, int kTeams, class Work, class Weights>
struct ShortFetch {
  static constexpr int kXBytes = N * tile::kSwizzledRowBytes;  // per k block
  const Work& work;
  const ExpertParameters& p;
  ShortMemory<N, kTeams>& m;
  const int team, stages, code_bytes, scale_bytes;  // sizes per stage
  const uint32_t at, ring;
  RowFetch<N, 1> rows;
  tile::RingPlace place, buffer;

  __device__ __forceinline__ ShortFetch(const Work& its_work, ShortMemory<N, kTeams>& memory, int its_team)
      : work(its_work),
        p(its_work.parameters(0)),
        m(memory),
        team(its_team),
        stages(short_stages<N, Weights>(p.k_blocks)),
        code_bytes((Weights::kScaled ? p.k_blocks : 1) * Weights::kCodeBytes),
        scale_bytes(p.k_blocks * Weights::kScaleBytes),
        at(tile::shared_address(memory.bytes[its_team])),
        ring(at + 2 * p.k_blocks * kXBytes),
        rows(static_cast<int>(threadIdx.x % 32)) {}

  // Addresses of the weights of the next stage to fill.
  struct From {
    const uint8_t *codes, *scales, *tops;
  };
  // Issues the weight copies of the next `count` stages.
  __device__ __forceinline__ void issue(From& w, int count) {
    constexpr auto kTopBytes = static_cast<uint32_t>(kFragmentRows);
#pragma unroll 1
    for (; count > 0; --count) {
      m.weights(team).acquire_by_warp(place);
      const uint32_t stage = ring + place.stage * short_stage_bytes<Weights>(p.k_blocks),
                     full = m.weights(team).expect_by_warp(
                         place.stage, code_bytes + (Weights::kScaled ? scale_bytes + kTopBytes : 0));
      if constexpr (Weights::kScaled) {
        tile::copy_bulk_two(stage, w.codes, code_bytes, stage + code_bytes, w.scales, scale_bytes, full);
        tile::copy_bulk(stage + code_bytes + scale_bytes, w.tops, kTopBytes, full);
        w.codes += code_bytes, w.scales += scale_bytes, w.tops += kTopBytes;
        asm volatile(""
                     : "+l"(w.codes), "+l"(w.scales), "+l"(w.tops));  // otherwise recomputed from the start
      } else {
        tile::copy_bulk(stage, w.codes, code_bytes, full);
        w.codes += code_bytes;
        asm volatile("" : "+l"(w.codes));
      }
      place.step(stages);
    }
  }
  __device__ __forceinline__ void publish(const uint4& run) const {
    // Does not use runs(): ptxas would then compute the producer's
    // addresses in uniform registers, with 49 more instructions for N = 16.
    tile::barrier_wait_by_warp(&m.x_empty[team][buffer.stage], buffer.parity ^ 1);
    if (threadIdx.x % 32 == 0) m.run[team][buffer.stage] = run;
    __syncwarp();
    tile::barrier_expect_by_warp(&m.x_full[team][buffer.stage], 0);
  }
  // ahead: stages whose weight copies are issued before the rows of x are copied. early: x may not be written yet, so waits for it after these copies.
  __device__ __forceinline__ void run(const ShortRun& r, int ahead, bool early) {
    const int64_t block = static_cast<int64_t>(r.block) * p.k_blocks;
    From w{p.w + r.expert * p.w_bytes + block * Weights::kCodeBytes, nullptr, nullptr};
    if constexpr (Weights::kScaled) {
      const uint8_t* scales = p.w_scale + r.expert * p.scale_bytes;
      w.scales = scales + block * Weights::kScaleBytes;
      w.tops = scales + p.top_begin + r.block * kFragmentRows;
    }
    const int count = Weights::kScaled ? r.blocks : r.blocks * p.k_blocks;
    ahead = min(ahead, count);
    issue(w, ahead);
    if (early) work.wait_for_x(0);
    rows.begin(p, r.rows, [&](int i) { return work.x_row(0, r.row + i); });
    publish(make_uint4(static_cast<uint32_t>(r.expert), static_cast<uint32_t>(r.block),
                       static_cast<uint32_t>(r.row),
                       static_cast<uint32_t>(r.blocks * ShortRun::kBlock + r.rows)));
    const uint32_t x = at + buffer.stage * p.k_blocks * kXBytes;
#pragma unroll 1
    for (int k = 0; k < p.k_blocks; ++k) rows.template copy<1>(p, x + k * kXBytes, k);
    arrive_with_x(p, tile::shared_address(&m.x_full[team][buffer.stage]));
    __syncwarp();
    buffer.step(2);
    issue(w, count - ahead);
  }
  // Loads units [index, end) of the list. find(index) returns the expert, its rows, and the unit's index among the expert's units.
  template <class Find>
  __device__ __forceinline__ void all(int index, int end, Find find) {
    bool first = true;
#pragma unroll 1
    while (index < end) {
      const auto found = find(index);
      const ShortRun r = ShortRun::of<N>(p, found.expert, found.rows, __ldg(p.row_begin + found.expert),
                                         found.within, end - index);
      run(r, first ? stages : 0, first && p.settled);
      first = false;
      index += r.blocks;
    }
    if (first && p.settled) work.wait_for_x(0);
    publish({});
    tile::barrier_arrive(&m.x_full[team][buffer.stage]);
  }
};

// Keeps the compiler from recomputing `value` at each use.
__device__ __forceinline__ void keep(uint32_t& value) { asm volatile("" : "+r"(value)); }

// Epilogue of a run. A lane writes N / 4 columns of y (mma.cuh), two features per column; row blocks are written one after the other.
template <int N>
struct ShortRows {
  static constexpr int kColumns = N / 4;
  std::byte* y[kColumns];  // address of the lane's first feature of a row block
  int features[kColumns];  // features of y, as a bound for the lane's; 0: the column does not exist
  float weight[kColumns];  // input weight of the column
  int feature, expert;     // feature: the lane's first feature of the row block

  template <class Work>
  __device__ __forceinline__ ShortRows(const Work& work, const ExpertParameters& p, const StreamUnit& unit,
                                       int row_in_block)
      : feature(unit.block * static_cast<int>(kFragmentRows) + row_in_block), expert(unit.expert) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int row = c / 2 * 8 + static_cast<int>(threadIdx.x % 4) * 2 + c % 2;
      const bool has = row < unit.rows();
      features[c] = has ? p.features : 0;
      weight[c] = p.weights && has ? p.weights[work.order(unit.row + row)] : 1.f;
      const int64_t at = work.y_row(unit, unit.row + row) * p.y_stride + feature;
      y[c] = static_cast<std::byte*>(p.y) + (p.y_f32 ? 4 : 2) * at;
    }
  }
  // Loads the row block's biases as raw bits: a conversion here would wait for the loads.
  __device__ __forceinline__ void load(const ExpertParameters& p, uint32_t (&raw)[2]) const {
    if (!p.bias) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t at = static_cast<int64_t>(expert) * p.features + min(feature + 8 * i, p.features - 1);
      raw[i] = p.bias_f32 ? __ldg(static_cast<const uint32_t*>(p.bias) + at)
                          : __ldg(static_cast<const uint16_t*>(p.bias) + at);
    }
  }
  // Writes the sums of the row block, and advances to the next row block.
  template <class Weights>
  __device__ __forceinline__ void write(const ExpertParameters& p, const float (&sum)[N / 2],
                                        const uint32_t (&top)[2], const uint32_t (&raw)[2]) {
    float bias[2] = {}, out[2][kColumns];
    if (p.bias) {
#pragma unroll
      for (int i = 0; i < 2; ++i) bias[i] = __uint_as_float(p.bias_f32 ? raw[i] : raw[i] << 16);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float factor = Weights::kScaled ? tile::row_factor(top[i]) : 1.f;
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
        out[i][c] = fmaf(sum[c / 2 * 4 + i * 2 + c % 2] * factor, weight[c], bias[i]);
    }
    if (p.act.which != Activation::kIdentity) {
      const tile::ActivationValues act = activation_of(p, expert);
      tile::activate_plain(act, out[0]);
      tile::activate_plain(act, out[1]);
    }
    if (p.y_f32) {
      store(out, [](float v) { return v; });
    } else {
      store(out, [](float v) { return __float2bfloat16_rn(v); });
    }
    feature += kFragmentRows;
  }

 private:
  template <class To>
  __device__ __forceinline__ void store(const float (&out)[2][kColumns], To to) {
    using T = decltype(to(0.f));
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (feature + 8 * i < features[c]) reinterpret_cast<T*>(y[c])[8 * i] = to(out[i][c]);
      y[c] += kFragmentRows * sizeof(T);
    }
  }
};

// Adds the sum of a split of kCount k blocks to `sum`, and advances the operand addresses to the next split.
template <int N, int kCount>
__device__ __forceinline__ void multiply_split(float (&sum)[N / 2], OperandsAt& at) {
  float d[2][N / 8][4] = {};
  Mxfp4Weights::Unit unit;
  multiply_steps<N, Mxfp4Weights, kCount>(d, unit, at, 0);
#pragma unroll
  for (int i = 0; i < N / 2; ++i) sum[i] += d[0][i / 4][i % 4] + d[1][i / 4][i % 4];
  at.codes += kCount * Mxfp4Weights::kCodeBytes, at.scales += kCount * Mxfp4Weights::kScaleBytes;
#pragma unroll
  for (int i = 0; i < 2; ++i) at.x[i] += kCount * N * tile::kSwizzledRowBytes;
}
// Adds up `count` k blocks, split by split. The last split may be shorter.
template <int N>
__device__ __forceinline__ void multiply_row_block(float (&sum)[N / 2], OperandsAt at, int count) {
  static_assert(kSplitSteps == 4);
#pragma unroll 1
  for (int splits = count / 4; splits > 0; --splits) multiply_split<N, 4>(sum, at);
  switch (count % 4) {
    case 1:
      return multiply_split<N, 1>(sum, at);
    case 2:
      return multiply_split<N, 2>(sum, at);
    case 3:
      return multiply_split<N, 3>(sum, at);
    default:
      return;
  }
}

// A consumer's position in its team's ring: waits for the stages in order and releases them. It keeps the
// addresses of the current stage and of its full barrier, and the phase, instead of a tile::RingPlace:
// the size of a stage is known only at run time, so a RingPlace would cost a multiplication per k block.
template <int N, int kTeams, class Weights>
struct ShortStages {
  uint32_t stage, full, parity = 0;
  const uint32_t stages, bytes, full_end;
  static constexpr uint32_t kEmpty =
      sizeof(ShortMemory<N, kTeams>::full);  // offset from a stage's `full` to its `empty`

  __device__ __forceinline__ ShortStages(const ShortMemory<N, kTeams>& m, int team, int k_blocks)
      : stage(tile::shared_address(m.bytes[team]) + 2 * k_blocks * N * tile::kSwizzledRowBytes),
        full(tile::shared_address(m.full[team])),
        stages(short_stages<N, Weights>(k_blocks)),
        bytes(short_stage_bytes<Weights>(k_blocks)),
        full_end(full + 8 * stages) {}
  __device__ __forceinline__ void wait() const { tile::barrier_wait_by_warp(full, parity); }
  __device__ __forceinline__ void release(uint32_t predicate) {
    tile::arrive_by_lane(full + kEmpty, predicate);
    stage += bytes, full += 8;
    if (full == full_end) stage -= stages * bytes, full -= 8 * stages, parity ^= 1;
  }
};

// The loop of a consumer warp, which computes one of the four slabs of row blocks.
template <class Weights, int N, int kTeams, class Work>
__device__ __forceinline__ void short_multiply(const Work& work, ShortMemory<N, kTeams>& m, int team,
                                               int slab) {
  const ExpertParameters& p = work.parameters(0);
  const uint32_t lane = threadIdx.x % 32, row = slab * 16 + lane / 4, k_bytes = N * tile::kSwizzledRowBytes,
                 x_bytes = p.k_blocks * k_bytes, bytes = tile::shared_address(m.bytes[team]);
  uint32_t codes_at = Weights::codes_at(slab, lane),
           scales_at = p.k_blocks * Weights::kCodeBytes + Weights::scales_at(slab, lane),
           tops_at = p.k_blocks * (Weights::kCodeBytes + Weights::kScaleBytes) + row;
  keep(codes_at);
  if constexpr (Weights::kScaled) keep(scales_at), keep(tops_at);
  ShortStages<N, kTeams, Weights> at(m, team, p.k_blocks);
  tile::RingPlace buffer;
#pragma unroll 1
  while (true) {
    m.runs(team).wait_by_warp(buffer);
    const uint4 run_words = tile::load_shared(tile::shared_address(&m.run[team][buffer.stage]));
    const int what = uniform(static_cast<int>(run_words.w));
    if (what == 0) break;
    const StreamUnit unit = {static_cast<int>(run_words.x), static_cast<int>(run_words.y),
                             static_cast<int>(run_words.z), what % ShortRun::kBlock * StreamUnit::kRow};
    ShortRows<N> rows(work, p, unit, static_cast<int>(row));
    const uint32_t x = bytes + buffer.stage * x_bytes;
    uint32_t x_at[2] = {x + tile::swizzled(lane % 8, lane / 8 * 16),
                        x + tile::swizzled(lane % 8, lane / 8 * 16 + 64)};
    keep(x_at[0]), keep(x_at[1]);
#pragma unroll 1
    for (int blocks = what / ShortRun::kBlock; blocks > 0; --blocks) {
      uint32_t bias[2] = {}, top[2] = {};
      rows.load(p, bias);
      float sum[N / 2] = {};
      if constexpr (Weights::kScaled) {
        at.wait();
#pragma unroll
        for (int i = 0; i < 2; ++i) top[i] = tile::load_shared_byte(at.stage + tops_at + 8 * i);
        multiply_row_block<N>(sum, {at.stage + codes_at, at.stage + scales_at, {x_at[0], x_at[1]}},
                              p.k_blocks);
        uint32_t loaded = 1;
#pragma unroll
        for (int i = 0; i < N / 2; i += 4) loaded &= has_loaded(sum[i]);
        at.release(loaded);
      } else {
        float d[2][N / 8][4] = {};
#pragma unroll 1
        for (uint32_t k = 0; k < x_bytes; k += k_bytes) {
          at.wait();
          typename Weights::Unit unit;
          multiply_steps<N, Weights, 1>(d, unit, {at.stage + codes_at, 0, {x_at[0] + k, x_at[1] + k}}, 0);
          at.release(have_loaded<Weights>(d));
        }
#pragma unroll
        for (int i = 0; i < N / 2; ++i) sum[i] = d[0][i / 4][i % 4] + d[1][i / 4][i % 4];
      }
      rows.template write<Weights>(p, sum, top, bias);
    }
    m.runs(team).release(buffer.stage);
    buffer.step(2);
  }
}

// Every team has a contiguous range of the units.
template <int N, class Weights>
__global__ void __launch_bounds__(kListThreads, kListBlocksEach)
    expert_gemm_stream_short(const __grid_constant__ ExpertParameters p) {
  constexpr int kTeams = kListTeams;
  extern __shared__ uint8_t dynamic[];
  auto& m =
      *reinterpret_cast<ShortMemory<N, kTeams>*>(dynamic + (128 - tile::shared_address(dynamic) % 128) % 128);
  const int warp = uniform(static_cast<int>(threadIdx.x / 32));
  if (warp < kTeams) m.init(warp);
  __syncthreads();
  using Work = ListWork<false>;
  const Work work{p};
  if (warp < kTeams) {
    ShortFetch<N, kTeams, Work, Weights> fetch(work, m, warp);
    if (!p.settled) tile::wait_for_previous();
    const UnitList<N> list(p);
    const int64_t teams = static_cast<int64_t>(kTeams) * gridDim.x, mine = blockIdx.x * kTeams + warp;
    fetch.all(uniform(static_cast<int>(list.all * mine / teams)),
              uniform(static_cast<int>(list.all * (mine + 1) / teams)),
              [&](int index) { return list.find(index); });
  } else {
    tile::wait_for_previous();
    tile::release_next();
    short_multiply<Weights, N, kTeams>(work, m, (warp - kTeams) / 4, (warp - kTeams) % 4);
  }
}

// Launches the kernel. The problem must have short sums and must not be gated.
template <int N, class Weights>
Status launch_short(std::string_view name, const ExpertParameters& parameters, Stream stream) {
  constexpr size_t kBytes = 128 + sizeof(ShortMemory<N, kListTeams>);
  static_assert(kBytes <= kListSharedMax);
  return launch_list(name, expert_gemm_stream_short<N, Weights>, kBytes, parameters, stream);
}

}  // namespace sluice::cuda
