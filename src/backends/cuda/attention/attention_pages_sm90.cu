// Attention of steps with prompts, in two launches that divide the sequences. A wgmma kernel (prefill.cuh) computes
// sequences with more than 64 queries per kv head. The decode kernel (decode.cuh) computes the others, concurrently
// where SMs have room. The division is made on the GPU, because the host does not know the lengths of the sequences.
//
// Wins    prompts (1024 rows at context 1024: 50 us against 103 us of attention_decode_sm90) and steps with many prompt rows and
//         decodes (288 rows and 32 decodes: 45.5 us against 59.5 us; attention_candidates.csv).
// Loses   to attention_decode_sm90 with few prompt rows (96 rows and 32 decodes: 41 us against 24 us) and with a short window (1024
//         rows, window 128: 42 us against 38 us), because of the second launch.
// Limits  as attention_decode_sm90. The result of a row depends on the number of rows that its sequence has in the step.
// Source  original; the scheme is Shah et al., "FlashAttention-3" (2024). The contract is ops/attention.h.
#include "backends/cuda/attention/decode_call.h"

namespace sluice::cuda {
namespace {

constexpr int kDecodeQueries = 64;  // maximum number of queries per sequence and kv head that the decode
                                    // kernel computes

Refusal supports(const Attention::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_attention_tiles(r, p, d);
  const int64_t queries = attention_rows(p) * (p.heads / p.kv_heads);
  r.need(queries > kDecodeQueries,
         "more than 64 queries of a kv head (otherwise the decode kernel computes all of them)", "queries",
         queries);
  return r;
}

// Costs of prompts are not fitted: prompts are compute-bound. In steps with few prompt rows an SM has one or two tiles, and the
// loop over their keys takes all the time; this is fitted to 96 to 1056 prompt rows with decodes (bench/measured/h100/attention_candidates.csv).
double cost_us(const Attention::Problem& p, const DeviceInfo& d, int tile) {
  constexpr double kFixedUs = 30, kIterationUs = 0.88, kQueryUs = 0.0037, kIterationKeys = 128,
                   kLongContext = 4096;
  const double flops_per_us = p.head_dim == 64 ? 520e6 : 640e6;
  const double keys =
      std::min(static_cast<double>(attention_context(p)), kLongContext) + (p.window > 0 ? 128 : 0);
  const auto queries = static_cast<double>(p.tokens * p.heads);
  const double rounds = std::ceil(std::ceil(queries / tile) / d.cores);
  const double chain_us = rounds * keys / kIterationKeys * (kIterationUs + kQueryUs * tile);
  return kFixedUs + std::max(chain_us, 4.0 * queries * static_cast<double>(p.head_dim) * keys / flops_per_us);
}

// Queries per tile of the first launch: the smallest size with which there are no more tiles than SMs, or else the largest.
int tile_of(const Attention::Problem& p, const DeviceInfo& d) {
  const int most = p.head_dim == 64 ? 192 : 128;
  int tile = 64;
  while (tile < most && p.tokens * p.heads > int64_t{tile} * d.cores) tile += 64;
  return tile;
}

std::vector<Config> configs(const Attention::Problem& p, const DeviceInfo& d) {
  // The number of sequences in the second launch is unknown. If there are many, one CTA
  // per tile is best; if there are few with long contexts, several CTAs per tile are best.
  constexpr int64_t kShort = 2048, kLong = 16384;
  const int64_t context = attention_context(p);
  const AttentionDecode few{.cluster = context <= kShort  ? 1
                                       : context <= kLong ? 2
                                                          : 4,
                            .most = kDecodeQueries};
  std::vector<Config> out;
  for (int tile = 64; tile <= (p.head_dim == 64 ? 192 : 128); tile += 64)
    for (const int cluster : {1, 2, 4}) {
      AttentionDecode one = few;
      one.cluster = cluster;
      out.push_back(
          {.name = std::to_string(tile) + "+16x" + std::to_string(cluster),
           .cost_us = cost_us(p, d, tile_of(p, d)) + (tile != tile_of(p, d)) + (cluster != few.cluster),
           .launches = {KernelLaunch{.value = {0, tile}}, one.launch()}});
    }
  return out;
}

std::string launch_text(const Attention::Problem&, const KernelLaunch& launch) {
  const AttentionDecode how = AttentionDecode::of(launch);
  if (how.groups == 0)
    return std::to_string(launch.value[1]) +
           " queries per tile, sequences with more than 64 queries of a kv head";
  return std::to_string(16 * how.groups) + " queries per tile, " + std::to_string(how.cluster) +
         (how.cluster == 1 ? " CTA" : " CTAs") + " per tile, all other sequences";
}

struct Launcher {
  static Status enqueue(const Attention::Problem&, std::span<const KernelLaunch>, const Attention::Args&,
                        Workspace, Stream);
};

}  // namespace

extern const Candidate<Attention> attention_pages_sm90 = {
    .name = "cuda.attention.pages_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .configs = configs,
    .enqueue_config = enqueue_config_of<Attention, Launcher>(),
    .launch_text = launch_text,
    .alignment_bytes = 16,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include <numeric>

#include "backends/cuda/attention/prefill.cuh"
#include "backends/cuda/attention/step.h"
#include "backends/cuda/launch.h"

namespace sluice::cuda {
namespace {

template <int kDim, class C>
Status launch_prefill(const Attention::Problem& p, const Attention::Args& a, int tile, Stream stream) {
  using Shape = attention::PrefillShape<kDim, C>;
  const int64_t group = p.heads / p.kv_heads;
  // The maximum number of tiles: the full tiles of queries, plus one partial tile per sequence.
  const int64_t sequences = std::min(p.sequences, p.tokens * group / (kDecodeQueries + 1));
  const int64_t tiles = (p.tokens * group / tile + sequences) * p.kv_heads;
  const int box_keys = static_cast<int>(std::gcd<int64_t>(p.page_size, Shape::kKeys));
  uint32_t box_starts = 0;
  for (int at = 0; at < Shape::kKeys; at += box_keys) box_starts |= 1u << at / 16;
  const attention::PrefillCall call{
      .step = attention::step_of(p, a),
      .tiling = {.tile = tile, .least = kDecodeQueries + 1, .most = 1 << 30, .by_row = 0},
      .tiles = static_cast<int>(tiles),
      .box_keys = box_keys,
      .box_starts = box_starts};
  CUtensorMap k_map, v_map;
  SLUICE_TRY(attention::map_cache(k_map, p, a.k_cache, box_keys));
  SLUICE_TRY(attention::map_cache(v_map, p, a.v_cache, box_keys));
  const Launch how{.grid = {static_cast<unsigned>(std::min<int64_t>(tiles, queue_of(stream).sms)), 1, 1},
                   .block = {Shape::kThreads, 1, 1},
                   .shared_bytes = attention::PrefillMemory<Shape, C>::kSharedBytes};
  return launch(attention_pages_sm90.name, attention::attention_prefill<kDim, C>, how, stream, call, k_map,
                v_map);
}

template <class C>
Status launch_prefill(const Attention::Problem& p, const Attention::Args& a, int tile, Stream stream) {
  return p.head_dim == 64 ? launch_prefill<64, C>(p, a, tile, stream)
                          : launch_prefill<128, C>(p, a, tile, stream);
}

Status Launcher::enqueue(const Attention::Problem& p, std::span<const KernelLaunch> launches,
                         const Attention::Args& a, Workspace, Stream stream) {
  if (p.tokens == 0) return {};
  const int tile = launches[0].value[1];
  SLUICE_TRY(p.cache == CacheType::kE4M3 ? launch_prefill<E4M3>(p, a, tile, stream)
                                         : launch_prefill<__nv_bfloat16>(p, a, tile, stream));
  return launch_attention_decode(attention_pages_sm90.name, p, a, AttentionDecode::of(launches[1]), true,
                                 stream);
}

}  // namespace

}  // namespace sluice::cuda
#endif
