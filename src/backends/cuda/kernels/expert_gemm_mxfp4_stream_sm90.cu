// Expert GEMM for few rows an expert, mxfp4 weights: units of work as expert_stream.cuh has them, one row block of one expert's
// weights and the whole sum, so that many SMs have a share of few experts and no sum crosses an SM.
//
// Where sums are short, of no more than eight k blocks (six with 16 columns), a team takes row blocks of the same expert one
// behind the other: expert_stream_short.cuh. A kernel that is bound by issue gains by what it need not do again.
//
// How a grid lies over SMs is expert_stream_list.cuh. Units that are left over at the end, at most one a block, the teams of a
// block share.
//
// Wins    up to one or two rows an expert, short sums up to eight: weights arrive at the rate of a plain stream.
// Loses   more rows, of popular experts too: x passes the SM again for each 64 rows of weights. See mxfp4_tile_sm90. Few rows in
//         all: two launches. See expert_mlp_mxfp4_fewtokens_sm90.
// Limits  see supports(). Sums are cut in the same places for any batch, so a row's bits do not depend on it.
// Source  original; the contract is ops/expert_gemm.h.
#include "backends/cuda/card.h"
#include "backends/cuda/expert_cards.h"
#include "backends/cuda/expert_cost.h"

namespace sluice::cuda {
namespace {

constexpr int64_t kShortOf8 = 8, kShortOf16 = 6;  // k blocks of short sums, at most

Refusal supports(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_expert_blocks(r, p, d);
  need_type(r, "w", p.w, DType::kE2M1, "dequantised in registers");
  r.need(p.experts <= kListExpertsMost,
         "experts <= " + std::to_string(kListExpertsMost) + " (32 for each lane that counts)", "experts",
         p.experts);
  return r;
}

// Columns of a unit. With kFew rows of an expert on average hardly one has more than 8.
int columns_of(const ExpertGemm::Problem& p) {
  constexpr double kFew = 5;
  return std::min<double>(expert_load(p).rows_each, static_cast<double>(p.rows)) <= kFew ? 8 : 16;
}

// Whether the kernel of short sums serves a problem.
bool has_short_sums(const ExpertGemm::Problem& p) {
  const int64_t k_blocks = ExpertGemm::fragments(p).k_blocks;
  return !is_gated(p.act) && k_blocks <= (columns_of(p) == 8 ? kShortOf8 : kShortOf16);
}

// Weights pass each SM at a steady rate, and with 16 columns its instructions are what limits. Fitted to gpt-oss-20b,
// gpt-oss-120b and DeepSeek V4 Flash at 1 to 128 tokens on an H200, within 9%; short sums to the down products of DeepSeek V4
// Pro, Qwen3-235B and gpt-oss-120b under tensor-parallel 8, at 8 to 512 tokens, within 10%, up to 2 us.
double uniform_us(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  constexpr double kStartUs = 7.1, kSettledUs = 3;
  constexpr double kRowUs = 0.0014;  // for each row of 8, of a long sum
  constexpr struct {
    double unit_us, block_us[2];  // 8 columns, 16
  } kLong = {0.1, {0.0605, 0.087}}, kShort = {0.045, {0.063, 0.076}};
  constexpr double kPadding = 0.45;  // units of an expert that its last rows do not fill, on average
  const ExpertLoad load = expert_load(p);
  const int columns = columns_of(p);
  const double row_blocks = std::ceil(static_cast<double>(ExpertGemm::weight_rows(p)) / 64);
  const double blocks = std::ceil(static_cast<double>(p.width) / 64);
  const double units = load.active * std::max(1., load.rows_each / columns + kPadding) * row_blocks;
  const bool short_sums = has_short_sums(p);
  const auto& of = short_sums ? kShort : kLong;
  double block_us = of.block_us[columns == 8 ? 0 : 1];
  if (columns == 8 && !short_sums) block_us += kRowUs * std::min(8., load.rows_each);
  return kStartUs - (p.settled ? kSettledUs : 0) +
         std::max(1., units / d.cores) * (of.unit_us + block_us * blocks);
}

// Popular experts cost more than uniform routing knows of: their weights pass again for each 8 or 16 rows. For it Zipf 1.0
// takes some 8% longer with 4 rows an expert, 3% with 2; half of that is counted. Of short sums it is not known.
double cost_us(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  constexpr double kSkew = 0.015, kRowsLeast = 1.5, kRowsMost = 8;
  const double rows = has_short_sums(p) ? kRowsLeast : expert_load(p).rows_each;
  return uniform_us(p, d) * (1 + kSkew * (std::clamp(rows, kRowsLeast, kRowsMost) - kRowsLeast));
}

struct Launcher {
  static Status enqueue(const ExpertGemm::Problem&, const ExpertGemm::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<ExpertGemm> expert_gemm_mxfp4_stream_sm90 = {
    .name = "cuda.expert_gemm.mxfp4_stream_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<ExpertGemm>,
    .enqueue = enqueue_of<ExpertGemm, Launcher>(),
    .batch_invariant = true,
    .alignment_bytes = 16,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/expert_stream_short.cuh"

namespace sluice::cuda {
namespace {

static_assert(is_short<8, Mxfp4Weights>(kShortOf8) && !is_short<8, Mxfp4Weights>(kShortOf8 + 1));
static_assert(is_short<16, Mxfp4Weights>(kShortOf16) && !is_short<16, Mxfp4Weights>(kShortOf16 + 1));

constexpr int kSharedRounds = 1;  // units that the teams of a block share, at most, at the end of a grid

// As many units as the grid has teams at a time, one each; the teams of a block share what is left over where it is little.
template <int N, class W>
__device__ __forceinline__ void fetch_all(const W& work, StreamMemory<N, kListTeams>& m, int team) {
  const ExpertParameters& p = work.p;
  StreamFetch<N, kListTeams, W> fetch(work, m, team);
  if (!p.settled) tile::wait_for_previous();
  const UnitList<N> list(p);
  const int blocks = static_cast<int>(gridDim.x), over = list.all % (kListTeams * blocks);
  const int alone = over <= kSharedRounds * blocks && may_share(p) ? list.all - over : list.all;
  int index = static_cast<int>(blockIdx.x) + team * blocks;
  bool shared = false, early = p.settled;
#pragma unroll 1
  while (true) {
    if (!shared && index >= alone) shared = true, index = alone + static_cast<int>(blockIdx.x);
    if (index >= list.all) break;
    const auto found = list.find(index);
    fetch.unit(found.expert, found.rows, __ldg(p.row_begin + found.expert), found.within, shared, early);
    early = false;
    index += shared ? blocks : kListTeams * blocks;
  }
  if (early) tile::wait_for_previous();
  fetch.no_more();
}

template <int N, bool kGated>
__global__ void __launch_bounds__(kListThreads, kListBlocksEach)
    expert_stream(const __grid_constant__ ExpertParameters p) {
  extern __shared__ uint8_t dynamic[];
  auto& m = *reinterpret_cast<StreamMemory<N, kListTeams>*>(
      dynamic + (128 - tile::shared_address(dynamic) % 128) % 128);
  const int warp = uniform(static_cast<int>(threadIdx.x / 32));
  if (warp < kListTeams) m.init(warp);
  __syncthreads();
  const ListWork<kGated> work{p};
  if (warp < kListTeams) {
    fetch_all<N>(work, m, warp);
  } else {
    tile::wait_for_previous();
    tile::release_next();
    stream_multiply<N, kListTeams>(work, m, (warp - kListTeams) / 4, (warp - kListTeams) % 4);
  }
}

template <int N, bool kGated>
Status enqueue_long(const ExpertParameters& parameters, Stream stream) {
  constexpr size_t kBytes = 128 + sizeof(StreamMemory<N, kListTeams>);
  static_assert(kBytes <= kListSharedMost);
  return launch_list(expert_gemm_mxfp4_stream_sm90.name, expert_stream<N, kGated>, kBytes, parameters,
                     stream);
}
template <int N>
Status enqueue_stream(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, Stream stream) {
  const ExpertParameters parameters = expert_parameters(p, a);
  if (has_short_sums(p))
    return launch_short<N, Mxfp4Weights>(expert_gemm_mxfp4_stream_sm90.name, parameters, stream);
  return is_gated(p.act) ? enqueue_long<N, true>(parameters, stream)
                         : enqueue_long<N, false>(parameters, stream);
}

Status Launcher::enqueue(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, Workspace, Stream stream) {
  if (p.rows == 0) return {};
  return columns_of(p) == 8 ? enqueue_stream<8>(p, a, stream) : enqueue_stream<16>(p, a, stream);
}

}  // namespace

}  // namespace sluice::cuda
#endif
