// Attention for sequences of few rows: the keys of a tile of queries are divided
// among the warps of a cluster, of a CTA, or of a part of a CTA (decode.cuh).
//
// Wins    decode steps, where reading keys and values is the bottleneck and every warp has its own pages in flight. Also prompts
//         with a short window (1024 rows, window 128: 38 us against 42 us of attention_pages_sm90) and steps with few prompt rows
//         (96 rows and 32 decodes at context 1024: 24 us against 41 us; attention_candidates.csv).
// Loses   to attention_pages_sm90 for prompts (1024 rows at context 1024: 103 us against 50 us): keys are read again for every 32 queries,
//         and mma.sync is half as fast as wgmma.
// Limits  bf16, caches of bf16 or e4m3, head_dim 64 or 128, pages of a multiple of 16. The result of a row depends on the number of warps
//         that divide the keys, which is in the configuration. attention_rows_sm90 accepts the problems that this kernel refuses.
// Source  original; the online softmax is Milakov and Gimelshein (2018). The contract is ops/attention.h.
#include "backends/cuda/attention/decode_call.h"

namespace sluice::cuda {
namespace {

Refusal supports(const Attention::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_attention_tiles(r, p, d);
  return r;
}

// Fitted to the rows of bench/measured/h200/attention_candidates.csv with one row per
// sequence: the chosen configurations are 0.6% slower than the best ones on average, and at
// most 11%. Costs of prompts are not fitted: caches are read from memory once, and prompts are
// compute-bound. A context is assumed to fill the page table, up to a few thousand positions.
double cost_us(const Attention::Problem& p, const DeviceInfo& d, const AttentionDecode& how) {
  constexpr double kFixedUs = 2.73, kRoundUs = 3.70, kSharedSmUs = 1.21, kClusterUs = 0.082, kCtaUs = 0.098;
  constexpr double kIterationUs = 0.605, kIterationE4m3Us = 0.685, kMemoryShare = 1.158, kBoth = 0.679;
  constexpr double kLargeClusterFit = 0.95, kLongContext = 4096, kFlopsPerUs = 200e6, kSearchUs = 12;
  // Effect of narrow tiles, from bench/measured/h100/attention_candidates.csv: half of the exponentials and
  // half of the sums to join, but fewer stages, which costs time where memory bandwidth is the bottleneck.
  constexpr double kNarrowIteration = 0.875, kNarrowUs = -0.3, kNarrowSharedSmUs = 0.6, kFewStagesUs = 0.9;
  if (p.tokens == 0) return kRampUs;
  const double group = static_cast<double>(p.heads / p.kv_heads), queries = how.queries();
  const double rows = static_cast<double>(attention_rows(p)), tokens = static_cast<double>(p.tokens);
  const double units =
      // number of (sequence, kv head) pairs, which have different keys
      std::ceil(tokens / rows) * static_cast<double>(p.kv_heads);
  const double tiles = std::ceil(rows * group / queries) * units;
  const double keys = std::min(static_cast<double>(attention_context(p)), kLongContext) +
                      (p.window > 0 ? std::min(rows, queries / group) - 1 : 0);
  const double resident = p.head_dim == 64 && how.groups == 1 ? 2 : 1, ctas = tiles * how.cluster / how.heads;
  const double rounds = std::ceil(ctas / (d.cores * resident * (how.cluster > 2 ? kLargeClusterFit : 1)));
  const double iterations = std::ceil(keys / 16 / (8.0 * how.cluster / how.heads));  // per warp
  const double iteration_us = (p.cache == CacheType::kE4M3 ? kIterationE4m3Us : kIterationUs) * how.groups *
                              (how.narrow ? kNarrowIteration : 1) * static_cast<double>(p.head_dim) / 64;
  const double one = iterations * iteration_us + (how.cluster > 1 ? kClusterUs + kCtaUs * how.cluster : 0);
  const double chain_us =
      rounds * one + (rounds - 1) * kRoundUs +
      (ctas > d.cores && resident > 1 ? (how.narrow ? kNarrowSharedSmUs : kSharedSmUs) : 0);
  const auto head = static_cast<double>(bytes_of(cache_dtype(p.cache, p.q), p.head_dim));
  const double memory_us = units * 2 * keys * head / (kMemoryShare * d.mem_bytes_per_us);
  // A window begins and ends inside tiles of keys, so the kernel computes about 64 more keys than the window has.
  const double met = keys + (p.window > 0 ? 64 : 0);
  const double flops = rows > 1 ? 6.0 * tiles * queries * met * static_cast<double>(p.head_dim) : 0;
  // kSearchUs: if sequences have several rows, every CTA searches for its tile among all tiles.
  const double narrow_us =
      !how.narrow ? 0 : kNarrowUs + (memory_us > chain_us && ctas > d.cores ? kFewStagesUs : 0);
  return kFixedUs + narrow_us + (rows > 1 ? kSearchUs : 0) +
         std::max({chain_us, memory_us, flops / kFlopsPerUs}) + kBoth * std::min(chain_us, memory_us);
}

std::vector<Config> configs(const Attention::Problem& p, const DeviceInfo& d) {
  std::vector<Config> out;
  const int64_t queries = attention_rows(p) * (p.heads / p.kv_heads);
  const auto add = [&](const std::string& name, AttentionDecode how) {
    how.by_row = attention_rows(p) == 1;
    Config c{.name = std::to_string(how.queries()) + name,
             .cost_us = cost_us(p, d, how),
             .launches = {how.launch()}};
    c.refusal.need(how.groups == 1 || p.head_dim == 64, "head_dim of 64 (registers)", "head_dim", p.head_dim);
    c.refusal.need(how.groups == 1 || queries > 16, "more than 16 queries of a sequence (the size of a tile)",
                   "queries", queries);
    c.refusal.need(!how.narrow || (p.head_dim == 64 && queries <= 8),
                   "head_dim of 64 and at most 8 queries of a sequence (narrow tiles)", "queries", queries);
    if (how.heads > 1) need_multiple(c.refusal, "kv_heads", p.kv_heads, how.heads, "kv heads per CTA");
    out.push_back(std::move(c));
  };
  for (const AttentionDecode& tile :
       {AttentionDecode{}, AttentionDecode{.groups = 2}, AttentionDecode{.narrow = 1}}) {
    AttentionDecode how = tile;
    for (const int cluster : {1, 2, 4, 8, 16}) how.cluster = cluster, add("x" + std::to_string(cluster), how);
    how.cluster = 1;
    for (const int heads : {2, 4, 8}) how.heads = heads, add("/" + std::to_string(heads), how);
  }
  return out;
}

std::string launch_text(const Attention::Problem&, const KernelLaunch& launch) {
  const AttentionDecode how = AttentionDecode::of(launch);
  return std::to_string(how.queries()) + " queries per tile, " + std::to_string(how.cluster) +
         (how.cluster == 1 ? " CTA" : " CTAs") + " per tile" +
         (how.heads > 1 ? ", " + std::to_string(how.heads) + " kv heads per CTA" : "") +
         (how.by_row ? ", one row per tile" : "");
}

struct Launcher {
  static Status enqueue(const Attention::Problem&, std::span<const KernelLaunch>, const Attention::Args&,
                        Workspace, Stream);
};

}  // namespace

extern const Candidate<Attention> attention_decode_sm90 = {
    .name = "cuda.attention.decode_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .configs = configs,
    .enqueue_config = enqueue_config_of<Attention, Launcher>(),
    .launch_text = launch_text,
    .batch_invariant = true,
    .config_decides_bits = true,
    .alignment_bytes = 16,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include <bit>

#include "backends/cuda/attention/decode.cuh"
#include "backends/cuda/attention/step.h"
#include "backends/cuda/launch.h"

namespace sluice::cuda {
namespace {

template <class Shape>
Status launch_decode(std::string_view name, const Attention::Problem& p, const Attention::Args& a,
                     const AttentionDecode& how, bool beside, Stream stream) {
  const int64_t group = p.heads / p.kv_heads, queries = Shape::kQueries;
  // The maximum number of tiles of queries: tiles of single rows, or the full tiles plus one
  // partial tile per sequence.
  const int64_t by_row = p.tokens * ((group + queries - 1) / queries);
  const int64_t listed = p.tokens * group / queries + std::min(p.tokens, p.sequences);
  const int64_t tiles = how.by_row ? by_row : listed;
  // The grid has only as many clusters as run at once; they loop over the tiles. Hence a launch for few sequences is short.
  const int64_t fit = std::max<int64_t>(1, 2 * queue_of(stream).sms * how.heads / (p.kv_heads * how.cluster));
  const int64_t clusters = how.by_row ? tiles : std::min(tiles, fit);
  attention::DecodeCall call{
      .step = attention::step_of(p, a),
      .tiling = {.tile = Shape::kQueries, .least = 1, .most = how.most, .by_row = how.by_row},
      .tiles = static_cast<int>(tiles),
      .cluster = how.cluster,
      .heads = how.heads,
      .cluster_log = static_cast<int>(std::bit_width(static_cast<unsigned>(how.cluster))) - 1,
      .beside = beside};
  CUtensorMap k_map, v_map;
  SLUICE_TRY(attention::map_cache(k_map, p, a.k_cache, Shape::kKeys));
  SLUICE_TRY(attention::map_cache(v_map, p, a.v_cache, Shape::kKeys));
  const Launch launched{.grid = {static_cast<unsigned>(clusters * how.cluster),
                                 static_cast<unsigned>(p.kv_heads / how.heads), 1},
                        .block = {Shape::kThreads, 1, 1},
                        .shared_bytes = Shape::kSharedBytes,
                        .cluster = {static_cast<unsigned>(how.cluster), 1, 1}};
  return launch(name, attention::attention_decode<Shape>, launched, stream, call, k_map, v_map);
}

template <template <int> class Tile>
Status launch_of(std::string_view name, const Attention::Problem& p, const Attention::Args& a,
                 const AttentionDecode& how, bool beside, Stream stream) {
  using attention::DecodeShape;
  if (p.head_dim == 128)
    return launch_decode<DecodeShape<Tile<128>, 1, false>>(name, p, a, how, beside, stream);
  return how.narrow        ? launch_decode<DecodeShape<Tile<64>, 1, true>>(name, p, a, how, beside, stream)
         : how.groups == 2 ? launch_decode<DecodeShape<Tile<64>, 2, false>>(name, p, a, how, beside, stream)
                           : launch_decode<DecodeShape<Tile<64>, 1, false>>(name, p, a, how, beside, stream);
}

Status Launcher::enqueue(const Attention::Problem& p, std::span<const KernelLaunch> launches,
                         const Attention::Args& a, Workspace, Stream stream) {
  return launch_attention_decode(attention_decode_sm90.name, p, a, AttentionDecode::of(launches[0]), false,
                                 stream);
}

}  // namespace

Status launch_attention_decode(std::string_view name, const Attention::Problem& p, const Attention::Args& a,
                               const AttentionDecode& how, bool beside, Stream stream) {
  if (p.tokens == 0) return {};
  return p.cache == CacheType::kE4M3 ? launch_of<attention::E4m3Tile>(name, p, a, how, beside, stream)
                                     : launch_of<attention::Bf16Tile>(name, p, a, how, beside, stream);
}

}  // namespace sluice::cuda
#endif
