// Queries, keys and values of up to eight rows by the kernel whose weights stream past (linear_stream.cuh). A unit of work is eight
// features of a head and the eight that turn with them, half a head further: one box of TMA, and two lanes of a warp at the end. Sums
// are rounded to bf16 as the projection alone does it, so a row's bits are those of the two operations in turn.
//
// Wins    one to some rows: no launch between the projection and attention, which is a microsecond or two of a layer's fifty.
// Loses   more rows than its registers hold: the parts in turn.
// Limits  bf16, heads that turn as a whole, in halves. Rows of x that are not 16-byte aligned go through the parts.
// Bytes   w once, x once a CTA.
// Source  original; the contract is ops/qkv_rope_kv_write.h.
#include "backends/cuda/kernels/qkv_rope_kv_write.h"

#include "backends/cuda/kernels/linear_stream.h"

namespace sluice::cuda {
namespace {

Refusal supports(const QkvRopeKvWrite::Problem& p, const DeviceInfo& d) {
  Refusal r;
  const Linear::Problem linear = QkvRopeKvWrite::project(p);
  need_linear_operands(r, linear, d);
  need_stream_rows(r, linear.tokens);
  need_turned_heads(r, p, kStreamSlab, "units of eight pairs");
  return r;
}

std::vector<Config> configs(const QkvRopeKvWrite::Problem& p, const DeviceInfo& d, const Policy&) {
  const Linear::Problem linear = QkvRopeKvWrite::project(p);
  return {Config{.cost_us = linear_stream_us(linear, d) + kTurnUs,
                 .launches = {linear_stream_launch(linear, d, kStreamSlab)}}};
}

std::string launch_text(const QkvRopeKvWrite::Problem&, const KernelLaunch& l) {
  return linear_stream_text(l);
}

struct Launcher {
  static Status enqueue(const QkvRopeKvWrite::Problem&, std::span<const KernelLaunch>,
                        const QkvRopeKvWrite::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<QkvRopeKvWrite> qkv_rope_kv_write_stream_sm90 = {
    .name = "cuda.qkv_rope_kv_write.stream_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .configs = configs,
    .enqueue_config = enqueue_config_of<QkvRopeKvWrite, Launcher>(),
    .launch_text = launch_text,
    .batch_invariant = true,
    .alignment_bytes = 16,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/kernels/qkv_rope_kv_write_stream.cuh"

namespace sluice::cuda {
namespace {

Status Launcher::enqueue(const QkvRopeKvWrite::Problem& p, std::span<const KernelLaunch> launches,
                         const QkvRopeKvWrite::Args& a, Workspace, Stream stream) {
  if (p.rope.rope.tokens == 0) return {};
  if (!aligned_rows(a.x, tile::kMapStrideBytes)) return launch_qkv_in_turn(p, a, stream);
  return launch_turned<TurnedEnd>(
      qkv_rope_kv_write_stream_sm90.name, p, launches[0], a, [](auto&) {}, stream);
}

}  // namespace

}  // namespace sluice::cuda
#endif
