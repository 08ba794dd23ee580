// LoRA of experts on tensor cores, in one launch. A CTA, or a cluster of up to 8, computes a tile of up to 16 adjacent rows.
//
// The rows of a tile have one or several (adapter, expert) pairs. For each pair, all warps multiply the whole tile by A, each over its part
// of the columns, and keep the sums of the pair's rows. The warps of a CTA add up their sums in shared memory; then the CTAs of a cluster
// read each other's sums. A x is split into three bf16 terms, without rounding. Then each warp computes groups of 8 features: for each pair
// it multiplies A x by B and keeps the pair's rows; bias, activation and the store to y follow. Operands of mma.sync are loaded directly
// from global memory (tile/operand.cuh).
//
// Wins    wherever it accepts the problem.
// Loses   nowhere among the kernels that exist.
// Limits  see supports() below. The split of a sum depends on the configuration, so the kernel is not batch-invariant.
// Bytes   reads A and B of a pair once per tile that has a row with it.
// Source  original; the contract is ops/expert_lora.h, the design is that of docs/lab/cuda-lora.md.
#include "backends/cuda/card.h"
#include "ops/expert_lora.h"

namespace sluice::cuda {
namespace {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kUnit = 32;  // elements of a row that four lanes load together
constexpr int kBlockMemory = 227 << 10;

// Rows per tile; CTAs per cluster.
struct Tile {
  int rows, blocks;
};
constexpr Tile kTiles[] = {{1, 8}, {2, 8}, {4, 8}, {4, 4}, {8, 8}, {8, 4}, {8, 2}, {16, 4}, {16, 2}, {16, 1}};

int64_t parts(int64_t size, int64_t of) { return (size + of - 1) / of; }
int rows_of_product(const Tile& t) { return t.rows <= 8 ? 8 : 16; }

// Shared memory: the sums of each warp, of the CTA, and of the cluster, each [rows][pitch]. The padding of 8 floats puts the rows that half
// a warp stores into different banks.
int pitch_of(const ExpertLora::Problem& p) { return static_cast<int>(ExpertLora::inner(p)) + 8; }
size_t shared_bytes(const ExpertLora::Problem& p, const Tile& t) {
  return sizeof(float) * static_cast<size_t>((kWarps + 2) * rows_of_product(t) * pitch_of(p));
}

Refusal supports(const ExpertLora::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  need_type(r, "x", p.x, DType::kBF16, "operand of mma.sync");
  need_type(r, "w", p.w, DType::kBF16, "operand of mma.sync");
  need_multiple(r, "width", p.width, 8, "16-byte chunks of a row");
  need_multiple(r, "rank", p.rank, 8, "16-byte chunks of a row of b");
  r.need(p.width >= 128, "width >= 128 (shorter sums may miss their bound on tensor cores)", "width",
         p.width);
  r.need(p.rank <= 256, "rank <= 256 (each warp's sums in shared memory)", "rank", p.rank);
  r.need(!p.x_unaligned, "x_unaligned=0 (16-byte chunks of a row)", "x_unaligned", p.x_unaligned);
  r.need(p.rows < (int64_t{1} << 27), "rows < 2^27 (CTAs in a grid)", "rows", p.rows);
  return r;
}

// The expected number of different (adapter, expert) pairs in a tile: rows are sorted by expert, and the adapters of an expert's rows are
// independent.
double pairs_of_tile(const ExpertLora::Problem& p, const Tile& t) {
  const double of_expert = std::max(1.0, ExpertLora::expected_rows(p) / static_cast<double>(p.experts));
  const double rows = std::min<double>(t.rows, of_expert), adapters = static_cast<double>(p.adapters);
  return t.rows / rows * adapters * (1 - std::pow(1 - 1 / adapters, rows));
}

struct Constants {
  double launch_us = 3.6;
  double cluster_us = 0.9;     // the exchange between CTAs
  double pair_us = 0.7;        // per pair of a tile after its first: a round trip to memory
  double block_per_us = 30e3;  // read rate of one CTA
  double sm_per_us = 28e3;     // read rate of all CTAs of an SM together
  double resident = 2;         // CTAs per SM
};
constexpr Constants kCost;

double tile_us(const ExpertLora::Problem& p, const DeviceInfo& d, const Tile& t) {
  const double rows = std::max(1.0, ExpertLora::expected_rows(p)), tiles = std::ceil(rows / t.rows);
  const double pairs = pairs_of_tile(p, t);
  const double weights =
      2.0 * static_cast<double>(ExpertLora::inner(p) * p.width + ExpertLora::product_rows(p) * p.rank);
  const double of_row = static_cast<double>(bytes_of(p.x, p.width) + bytes_of(p.z, ExpertLora::z_columns(p)) +
                                            bytes_of(p.y, p.features));
  const double bytes = (pairs * weights + t.rows * of_row) / t.blocks;
  const double ctas = tiles * t.blocks, waves = std::max(1.0, ctas / (kCost.resident * d.cores));
  const double alone = bytes / kCost.block_per_us + kCost.pair_us * (pairs - 1);
  const double together = std::max(1.0, ctas / d.cores) * bytes / kCost.sm_per_us;
  return kCost.launch_us + (t.blocks > 1 ? kCost.cluster_us * waves : 0) +
         std::max({alone * waves, together, ExpertLora::bytes(p) / d.mem_bytes_per_us});
}

std::vector<Config> configs(const ExpertLora::Problem& p, const DeviceInfo& d) {
  std::vector<Config> out;
  for (const Tile& t : kTiles) {
    Config config{.name = std::to_string(t.rows) + "x" + std::to_string(t.blocks),
                  .cost_us = tile_us(p, d, t),
                  .launches = {{.value = {t.rows, t.blocks}}}};
    const size_t bytes = shared_bytes(p, t);
    config.refusal.need(bytes <= kBlockMemory, "sums within 227 KiB of shared memory", "bytes",
                        static_cast<int64_t>(bytes));
    out.push_back(std::move(config));
  }
  return out;
}

std::string launch_text(const ExpertLora::Problem&, const KernelLaunch& launch) {
  return "tiles of " + std::to_string(launch.value[0]) +
         " rows, the columns and features of one split among " + std::to_string(launch.value[1]) + " CTAs";
}

struct Launcher {
  static Status enqueue(const ExpertLora::Problem&, std::span<const KernelLaunch>, const ExpertLora::Args&,
                        Workspace, Stream);
};

}  // namespace

extern const Candidate<ExpertLora> expert_lora_mma_sm90 = {
    .name = "cuda.expert_lora.mma_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .configs = configs,
    .enqueue_config = enqueue_config_of<ExpertLora, Launcher>(),
    .launch_text = launch_text,
    .alignment_bytes = 16,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/experts/lora/lora_rows.cuh"
#include "backends/cuda/launch.h"
#include "backends/cuda/tile/cluster.cuh"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/operand_products.cuh"

namespace sluice::cuda {
namespace {

using B16 = __nv_bfloat16;

struct MmaParameters : LoraParameters {
  int tile;           // rows per tile
  int blocks, units;  // CTAs per cluster; units of a row of x per warp
  int pitch;
  uint32_t zero;  // always 0, but unknown to the compiler
};

// The rows of a tile, one per lane, and the lanes grouped by pair.
struct TileRows {
  LoraRow mine;
  uint32_t same;      // lanes whose row has the same pair
  uint32_t leaders;   // the first lane of each pair
  uint32_t existing;  // lanes whose row belongs to an expert

  template <int kRows>
  __device__ static TileRows find(const MmaParameters& p, int first) {
    TileRows out;
    out.mine = lora_row<kRows>(p, first, p.tile);
    out.same = __match_any_sync(~0u, out.mine.pair);
    out.leaders =
        __ballot_sync(~0u, out.mine.pair >= 0 && __ffs(out.same) - 1 == static_cast<int>(threadIdx.x % 32));
    out.existing = __ballot_sync(~0u, out.mine.expert >= 0);
    return out;
  }
  // Calls f(pair, mask of its rows) for each pair. Called by all lanes of a warp.
  template <class F>
  __device__ __forceinline__ void each_pair(F f) const {
#pragma unroll 1
    for (uint32_t rest = leaders; rest != 0; rest &= rest - 1) {
      const int leader = __ffs(rest) - 1;
      f(__shfl_sync(~0u, mine.pair, leader), __shfl_sync(~0u, same, leader));
    }
  }
};

// Stores this warp's part of A x, sums[row][k], for the rows in `members`, which have pair `pair`. Loops over kColumns rows of A at a time.
template <int kRows, int kColumns, int kFlight>
__device__ __forceinline__ void multiply_a(const MmaParameters& p, const int (&x_row)[kRows / 8], int slice,
                                           int pair, uint32_t members, float* sums) {
  constexpr int kRowGroups = kRows / 8, kColumnGroups = kColumns / 8;
  const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const int begin = min(slice * p.units * kUnit, p.width), end = min(begin + p.units * kUnit, p.width);
#pragma unroll 1
  for (int r0 = 0; r0 < p.inner; r0 += kColumns) {
    const B16 *a[kColumnGroups], *x[kRowGroups];
#pragma unroll
    for (int n = 0; n < kColumnGroups; ++n)
      a[n] = static_cast<const B16*>(p.a) +
             ((int64_t{pair} * p.inner + min(r0 + 8 * n + g, p.inner - 1)) * p.width + begin + 8 * c);
#pragma unroll
    for (int m = 0; m < kRowGroups; ++m)
      x[m] = static_cast<const B16*>(p.x) + (x_row[m] * p.x_stride + begin + 8 * c);
    float acc[(kRows + 8) / 16][kColumnGroups][4] = {};
#pragma unroll 1
    for (int left = end - begin - 8 * c, k = begin; k < end; k += kFlight * kUnit, left -= kFlight * kUnit) {
      tile::Eight<B16> av[kFlight][kColumnGroups], xv[kFlight][kRowGroups];
#pragma unroll
      for (int i = 0; i < kFlight; ++i) {
#pragma unroll
        for (int n = 0; n < kColumnGroups; ++n)
          tile::load_weights(av[i][n], a[n] + i * kUnit, i * kUnit < left);
#pragma unroll
        for (int m = 0; m < kRowGroups; ++m)
          tile::load_inputs(xv[i][m], x[m] + i * kUnit, i * kUnit < left, true);
      }
      // This zero depends on all loads, so no product starts before the last load has been issued. Without it the compiler moves each load
      // next to its use, which serializes the loads.
      uint32_t any = 0;
#pragma unroll
      for (int i = 0; i < kFlight; ++i) {
#pragma unroll
        for (int n = 0; n < kColumnGroups; ++n) any |= av[i][n].word[0].x;
#pragma unroll
        for (int m = 0; m < kRowGroups; ++m) any |= xv[i][m].word[0].x;
      }
      const float zero = __uint_as_float(any & p.zero);
#pragma unroll
      for (int n = 0; n < kColumnGroups; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[0][n][i] += zero;
#pragma unroll
      for (int i = 0; i < kFlight; ++i) tile::multiply_terms<B16, B16, kRows, kColumns>(acc, xv[i], av[i]);
#pragma unroll
      for (int n = 0; n < kColumnGroups; ++n) a[n] += kFlight * kUnit;
#pragma unroll
      for (int m = 0; m < kRowGroups; ++m) x[m] += kFlight * kUnit;
    }
#pragma unroll
    for (int m = 0; m < kRowGroups; ++m) {
      const int row = 8 * m + g;
#pragma unroll
      for (int n = 0; n < kColumnGroups; ++n) {
        const float(&d)[4] = acc[0][n];
        const int r =
            r0 + 8 * n + 2 * c;  // p.inner is a multiple of 8, so r and r + 1 are both inside or both outside
        if ((members >> row & 1) && r < p.inner)
          *reinterpret_cast<float2*>(sums + row * p.pitch + r) =
              m == 0 ? make_float2(d[0], d[1]) : make_float2(d[2], d[3]);
      }
    }
  }
}

// Adds up the sums of the warps, and of the CTAs of the cluster: scale * A x in `inner`, for rows with an adapter.
__device__ __forceinline__ void add_sums(const MmaParameters& p, const LoraRow& mine, int kept,
                                         const float* shared, float* part, float* inner) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const auto each_row = [&](auto f) {
#pragma unroll 1
    for (int t = warp; t < p.tile; t += kWarps) {
      const int pair = __shfl_sync(~0u, mine.pair, t);
      if (pair < 0) continue;
      for (int r = lane; r < p.inner; r += 32) f(t * p.pitch + r, pair);
    }
  };
  each_row([&](int at, int pair) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kWarps; ++j) sum += shared[j * kept + at];
    part[at] = p.blocks > 1 ? sum : sum * p.scale[pair / p.experts];
  });
  if (p.blocks == 1) return;
  tile::cluster_publish();
  tile::cluster_wait();
  each_row([&](int at, int pair) {
    const uint32_t here = tile::shared_address(part + at);
    float sum = 0;
#pragma unroll 4
    for (int j = 0; j < p.blocks; ++j) sum += tile::load_remote(tile::remote_address(here, j));
    inner[at] = sum * p.scale[pair / p.experts];
  });
  tile::cluster_publish();  // no CTA exits while another CTA reads its shared memory
}

// Computes y of kGroups groups of 8 features from `feature` on, `step` features apart.
template <int kRows, bool kGated, int kGroups>
__device__ __forceinline__ void multiply_b(const MmaParameters& p, const TileRows& rows,
                                           const int (&expert)[2], int first, int feature, int step,
                                           const float* inner) {
  constexpr int kHalves = kGated ? 2 : 1, kRowGroups = kRows / 8;
  const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  // Before the products, since nothing depends on them: z + bias of this lane's elements, [row group][gate or up][column].
  float value[kGroups][kRowGroups][kHalves][2] = {};
#pragma unroll
  for (int n = 0; n < kGroups; ++n)
#pragma unroll
    for (int m = 0; m < kRowGroups; ++m)
#pragma unroll
      for (int h = 0; h < kHalves; ++h)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int f = feature + n * step + 2 * c + i;
          if (expert[m] >= 0 && f < p.features)
            value[n][m][h][i] = lora_before(p, first + 8 * m + g, expert[m], f, h == 1);
        }
  rows.each_pair([&](int pair, uint32_t members) {
    float acc[kGroups][kHalves][4] = {};
#pragma unroll 1
    for (int r = 0; r < p.rank; r += kUnit) {
      const bool in = r + 8 * c < p.rank;
      tile::Eight<B16> bv[kGroups][kHalves][1];
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
        const int f = feature + n * step + g;
#pragma unroll
        for (int h = 0; h < kHalves; ++h) {
          const int row = lora_product_row(p, min(f, p.features - 1), h == 1);
          tile::load_weights(
              bv[n][h][0],
              static_cast<const B16*>(p.b) + (int64_t{pair} * p.product_rows + row) * p.rank + r + 8 * c,
              in && f < p.features);
        }
      }
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        tile::Eight<float> uv[kRowGroups] = {};
        if (in)
#pragma unroll
          for (int m = 0; m < kRowGroups; ++m) {
            const uint4* from = reinterpret_cast<const uint4*>(inner + (8 * m + g) * p.pitch + r + 8 * c +
                                                               (p.split && h == 1 ? p.rank : 0));
            uv[m].word[0] = from[0], uv[m].word[1] = from[1];
          }
#pragma unroll
        for (int n = 0; n < kGroups; ++n) {
          float product[1][1][4];
#pragma unroll
          for (int i = 0; i < 4; ++i) product[0][0][i] = acc[n][h][i];
          tile::multiply_terms<float, B16, kRows, 8>(product, uv, bv[n][h]);
#pragma unroll
          for (int i = 0; i < 4; ++i) acc[n][h][i] = product[0][0][i];
        }
      }
    }
#pragma unroll
    for (int m = 0; m < kRowGroups; ++m) {
      if (!(members >> (8 * m + g) & 1)) continue;
#pragma unroll
      for (int n = 0; n < kGroups; ++n)
#pragma unroll
        for (int h = 0; h < kHalves; ++h)
#pragma unroll
          for (int i = 0; i < 2; ++i) value[n][m][h][i] += acc[n][h][2 * m + i];
    }
  });
#pragma unroll
  for (int m = 0; m < kRowGroups; ++m) {
    if (expert[m] < 0) continue;
    const tile::ActivationValues act = lora_activation(p, expert[m]);
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      if constexpr (kGated) {
        tile::activate_gated(act, value[n][m][0], value[n][m][1]);
      } else {
        tile::activate_plain(act, value[n][m][0]);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int f = feature + n * step + 2 * c + i;
        if (f < p.features) lora_store(p, first + 8 * m + g, f, value[n][m][0][i]);
      }
    }
  }
}

template <int kRows, int kColumns, int kFlight, bool kGated>
__global__ void __launch_bounds__(kThreads) expert_lora_mma(const __grid_constant__ MmaParameters p) {
  extern __shared__ __align__(16) float shared[];
  constexpr int kGroups = kGated ? 2 : 4;
  const int block = blockIdx.x % p.blocks, warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
  const int first = static_cast<int>(blockIdx.x) / p.blocks * p.tile;
  const int kept = kRows * p.pitch, slice = block * kWarps + warp;
  float *const part = shared + kWarps * kept, *const inner = p.blocks > 1 ? part + kept : part;
  tile::wait_for_previous();
  tile::release_next();  // after the wait: the next product's groups may be settled (tile/dependent.cuh)
  const TileRows rows = TileRows::find<kRows>(p, first);
  if (rows.existing == 0) return;  // the same for all threads of the cluster
  int x_row[kRows / 8], expert[2] = {-1, -1};
#pragma unroll
  for (int m = 0; m < kRows / 8; ++m) {
    x_row[m] = __shfl_sync(~0u, rows.mine.x_row, 8 * m + g);
    expert[m] = __shfl_sync(~0u, rows.mine.expert, 8 * m + g);
  }
  if (rows.leaders != 0) {
    rows.each_pair([&](int pair, uint32_t members) {
      multiply_a<kRows, kColumns, kFlight>(p, x_row, slice, pair, members, shared + warp * kept);
    });
    __syncthreads();
    add_sums(p, rows.mine, kept, shared, part, inner);
    __syncthreads();
  }
  const int step = 8 * kWarps * p.blocks;
#pragma unroll 1
  for (int feature = slice * 8; feature < p.features; feature += kGroups * step)
    multiply_b<kRows, kGated, kGroups>(p, rows, expert, first, feature, step, inner);
  if (rows.leaders != 0 && p.blocks > 1) tile::cluster_wait();
}

template <int kRows, bool kGated>
auto kernel_for(int inner) {
  // kFlight: units that a warp loads at once; as many as leave enough registers for two CTAs per SM.
  return inner <= 16   ? expert_lora_mma<kRows, 16, 4, kGated>
         : inner <= 32 ? expert_lora_mma<kRows, 32, 3, kGated>
                       : expert_lora_mma<kRows, 64, 2, kGated>;
}

Status Launcher::enqueue(const ExpertLora::Problem& p, std::span<const KernelLaunch> launches,
                         const ExpertLora::Args& a, Workspace, Stream stream) {
  if (p.rows == 0) return {};
  const Tile tile{launches[0].value[0], launches[0].value[1]};
  MmaParameters parameters;
  static_cast<LoraParameters&>(parameters) = lora_parameters(p, a);
  parameters.tile = tile.rows, parameters.blocks = tile.blocks;
  parameters.units = static_cast<int>(parts(parts(p.width, kUnit), int64_t{tile.blocks} * kWarps));
  parameters.pitch = pitch_of(p);
  parameters.zero = 0;
  const bool gated = is_gated(p.act);
  const int inner = parameters.inner;
  const auto kernel = rows_of_product(tile) == 8
                          ? gated ? kernel_for<8, true>(inner) : kernel_for<8, false>(inner)
                      : gated ? kernel_for<16, true>(inner)
                              : kernel_for<16, false>(inner);
  const auto blocks = static_cast<unsigned>(tile.blocks);
  const Launch how{.grid = {static_cast<unsigned>(parts(p.rows, tile.rows)) * blocks, 1, 1},
                   .block = {kThreads, 1, 1},
                   .shared_bytes = shared_bytes(p, tile),
                   .cluster = {blocks, 1, 1}};
  return launch(expert_lora_mma_sm90.name, kernel, how, stream, parameters);
}

}  // namespace

}  // namespace sluice::cuda
#endif
