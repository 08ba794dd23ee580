// Attention of steps with prompts, in two launches that share the sequences: those with more than 64 queries a kv head go to
// wgmma (prefill.cuh), the others to the decode kernel (decode.cuh). Only the GPU knows which are which.
//
// Wins    prompts, and steps that mix them with decodes.
// Loses   steps where no sequence has many rows (attention_decode_sm90.cu): the second launch is not free.
// Limits  as attention_decode_sm90.cu. How many rows a sequence has in a step decides its bits.
// Source  original; the scheme is Shah et al., "FlashAttention-3" (2024). The contract is ops/attention.h.
#include "backends/cuda/attention/decode_call.h"

namespace sluice::cuda {
namespace {

constexpr int kDecodeQueries = 64;  // of a sequence and kv head: the decode kernel's, at most

Refusal supports(const Attention::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_attention_tiles(r, p, d);
  const int64_t queries = attention_rows(p) * (p.heads / p.kv_heads);
  r.need(queries > kDecodeQueries, "more than 64 queries of a kv head (the decode kernel takes others alone)",
         "queries", queries);
  return r;
}

// From arithmetic, not from rows: none is recorded yet.
double cost_us(const Attention::Problem& p) {
  constexpr double kTileUs = 3, kLongContext = 4096, kFlopsPerUs = 420e6;
  const double keys =
      std::min(static_cast<double>(attention_context(p)), kLongContext) + (p.window > 0 ? 128 : 0);
  return 2 * kRampUs + kTileUs +
         4.0 * static_cast<double>(p.tokens) * static_cast<double>(p.heads * p.head_dim) * keys / kFlopsPerUs;
}

std::vector<Config> configs(const Attention::Problem& p, const DeviceInfo&, const Policy&) {
  const AttentionDecode few{.groups = p.head_dim == 64 ? 2 : 1, .cluster = 4, .most = kDecodeQueries};
  return {Config{.cost_us = cost_us(p), .launches = {few.launch(), KernelLaunch{}}}};
}

std::string launch_text(const Attention::Problem& p, const KernelLaunch& launch) {
  const AttentionDecode how = AttentionDecode::of(launch);
  if (how.groups == 0)
    return (p.head_dim == 64 ? "192" : "128") +
           std::string(" queries a tile, sequences with more than 64 queries of a kv head");
  return std::to_string(16 * how.groups) + " queries a tile, " + std::to_string(how.cluster) +
         " CTAs to a tile, all other sequences";
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

template <int kDim>
Status launch_prefill(const Attention::Problem& p, const Attention::Args& a, Stream stream) {
  using Shape = attention::PrefillShape<kDim>;
  const int64_t group = p.heads / p.kv_heads;
  // Full tiles of queries, and one that is not for each sequence.
  const int64_t sequences = std::min(p.sequences, p.tokens * group / (kDecodeQueries + 1));
  const int64_t tiles = (p.tokens * group / Shape::kQueries + sequences) * p.kv_heads;
  if (tiles == 0) return {};
  const int box_keys = static_cast<int>(std::gcd<int64_t>(p.page_size, Shape::kKeys));
  const attention::PrefillCall call{
      .step = attention::step_of(p, a),
      .tiling = {.tile = Shape::kQueries, .least = kDecodeQueries + 1, .most = 1 << 30, .by_row = 0},
      .tiles = static_cast<int>(tiles),
      .box_keys = box_keys};
  CUtensorMap k_map, v_map;
  SLUICE_TRY(attention::map_cache(k_map, p, a.k_cache, box_keys));
  SLUICE_TRY(attention::map_cache(v_map, p, a.v_cache, box_keys));
  const Launch how{.grid = {static_cast<unsigned>(std::min<int64_t>(tiles, queue_of(stream).sms)), 1, 1},
                   .block = {Shape::kThreads, 1, 1},
                   .shared_bytes = Shape::kSharedBytes};
  return launch(attention_pages_sm90.name, attention::attention_prefill<kDim>, how, stream, call, k_map,
                v_map);
}

Status Launcher::enqueue(const Attention::Problem& p, std::span<const KernelLaunch> launches,
                         const Attention::Args& a, Workspace, Stream stream) {
  SLUICE_TRY(
      launch_attention_decode(attention_pages_sm90.name, p, a, AttentionDecode::of(launches[0]), stream));
  return p.head_dim == 64 ? launch_prefill<64>(p, a, stream) : launch_prefill<128>(p, a, stream);
}

}  // namespace

}  // namespace sluice::cuda
#endif
