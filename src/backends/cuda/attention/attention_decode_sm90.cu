// Attention for sequences of few rows: a cluster owns the query heads of a kv head, its warps share the keys (decode.cuh).
//
// Wins    decode: bytes of keys and values are the limit, and every warp keeps pages in flight by itself.
// Loses   prompts: keys are read once for every 32 queries, and mma.sync is half as fast as wgmma:
//         attention_pages_sm90.cu. What it refuses: attention_rows_sm90.cu.
// Limits  bf16, head_dim 64 or 128, pages of a multiple of 16. The number of CTAs of a cluster decides the bits.
// Source  original; the online softmax is Milakov and Gimelshein (2018). The contract is ops/attention.h.
#include "backends/cuda/attention/decode_call.h"

namespace sluice::cuda {
namespace {

Refusal supports(const Attention::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_attention_tiles(r, p, d);
  return r;
}

// From arithmetic, not from rows: none is recorded yet. Contexts are as long as a page table, up to a few thousand positions.
double cost_us(const Attention::Problem& p, const DeviceInfo& d, const AttentionDecode& how) {
  constexpr double kTileUs = 1.5, kClusterUs = 0.7, kCtaBytesPerUs = 60e3, kLongContext = 4096,
                   kFlopsPerUs = 200e6;
  if (p.tokens == 0) return kRampUs;
  const double group = static_cast<double>(p.heads / p.kv_heads), queries = 16.0 * how.groups;
  const double rows = static_cast<double>(attention_rows(p)), tokens = static_cast<double>(p.tokens);
  const double tiles =
      std::ceil(rows * group / queries) * std::ceil(tokens / rows) * static_cast<double>(p.kv_heads);
  const double keys = std::min(static_cast<double>(attention_context(p)), kLongContext) +
                      (p.window > 0 ? std::min(rows, queries / group) : 0);
  const double slots = d.cores * (p.head_dim == 64 && how.groups == 1 ? 2 : 1), ctas = tiles * how.cluster;
  const double bytes = 4.0 * keys * static_cast<double>(p.head_dim);  // of one tile
  const double rate = std::min(kCtaBytesPerUs, d.mem_bytes_per_us / std::min(ctas, slots));
  const double flops = 6.0 * tiles * queries * keys * static_cast<double>(p.head_dim);
  const double one = kTileUs + (how.cluster > 1 ? kClusterUs : 0) + bytes / how.cluster / rate;
  return kRampUs - kTileUs + std::max(std::ceil(ctas / slots) * one, flops / kFlopsPerUs);
}

std::vector<Config> configs(const Attention::Problem& p, const DeviceInfo& d, const Policy&) {
  std::vector<Config> out;
  const int64_t queries = attention_rows(p) * (p.heads / p.kv_heads);
  for (const int groups : {1, 2}) {
    for (const int cluster : {1, 2, 4, 8, 16}) {
      const AttentionDecode how{.groups = groups, .cluster = cluster, .by_row = attention_rows(p) == 1};
      Config c{.name = std::to_string(16 * groups) + "x" + std::to_string(cluster),
               .cost_us = cost_us(p, d, how),
               .launches = {how.launch()}};
      c.refusal.need(groups == 1 || p.head_dim == 64, "head_dim of 64 (registers)", "head_dim", p.head_dim);
      c.refusal.need(groups == 1 || queries > 16, "more than 16 queries of a sequence (what one tile holds)",
                     "queries", queries);
      out.push_back(std::move(c));
    }
  }
  return out;
}

std::string launch_text(const Attention::Problem&, const KernelLaunch& launch) {
  const AttentionDecode how = AttentionDecode::of(launch);
  return std::to_string(16 * how.groups) + " queries a tile, " + std::to_string(how.cluster) +
         (how.cluster == 1 ? " CTA" : " CTAs") + " to a tile" + (how.by_row ? ", a row each" : "");
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
#include "backends/cuda/attention/decode.cuh"
#include "backends/cuda/attention/step.h"
#include "backends/cuda/launch.h"

namespace sluice::cuda {
namespace {

template <int kDim, int kGroups>
Status launch_decode(std::string_view name, const Attention::Problem& p, const Attention::Args& a,
                     const AttentionDecode& how, Stream stream) {
  using Shape = attention::DecodeShape<kDim, kGroups>;
  const int64_t group = p.heads / p.kv_heads, queries = Shape::kQueries;
  // Tiles of queries at most: those of rows, or full ones and one that is not for each sequence.
  const int64_t by_row = p.tokens * ((group + queries - 1) / queries);
  const int64_t listed = p.tokens * group / queries + std::min(p.tokens, p.sequences);
  const int64_t tiles = how.by_row ? by_row : listed;
  // A list is walked by as many clusters as fit at once, so that a launch for few sequences is short.
  const int64_t fit = std::max<int64_t>(1, 2 * queue_of(stream).sms / (p.kv_heads * how.cluster));
  const int64_t clusters = how.by_row ? tiles : std::min(tiles, fit);
  attention::DecodeCall call{
      .step = attention::step_of(p, a),
      .tiling = {.tile = Shape::kQueries, .least = 1, .most = how.most, .by_row = how.by_row},
      .tiles = static_cast<int>(tiles),
      .cluster = how.cluster};
  CUtensorMap k_map, v_map;
  SLUICE_TRY(attention::map_cache(k_map, p, a.k_cache, Shape::kKeys));
  SLUICE_TRY(attention::map_cache(v_map, p, a.v_cache, Shape::kKeys));
  const Launch launched{
      .grid = {static_cast<unsigned>(clusters * how.cluster), static_cast<unsigned>(p.kv_heads), 1},
      .block = {Shape::kThreads, 1, 1},
      .shared_bytes = Shape::kSharedBytes,
      .cluster = {static_cast<unsigned>(how.cluster), 1, 1}};
  return launch(name, attention::attention_decode<kDim, kGroups>, launched, stream, call, k_map, v_map);
}

Status Launcher::enqueue(const Attention::Problem& p, std::span<const KernelLaunch> launches,
                         const Attention::Args& a, Workspace, Stream stream) {
  return launch_attention_decode(attention_decode_sm90.name, p, a, AttentionDecode::of(launches[0]), stream);
}

}  // namespace

Status launch_attention_decode(std::string_view name, const Attention::Problem& p, const Attention::Args& a,
                               const AttentionDecode& how, Stream stream) {
  if (p.tokens == 0) return {};
  if (p.head_dim == 128) return launch_decode<128, 1>(name, p, a, how, stream);
  return how.groups == 2 ? launch_decode<64, 2>(name, p, a, how, stream)
                         : launch_decode<64, 1>(name, p, a, how, stream);
}

}  // namespace sluice::cuda
#endif
