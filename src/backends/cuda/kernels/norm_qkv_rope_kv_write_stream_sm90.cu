// The norm, and queries, keys and values of up to eight rows, by the kernel whose weights stream past (linear_stream.cuh,
// qkv_rope_kv_write_stream_sm90.cu).
//
// Wins    one row, seven and eight: the norm is no launch of its own.
// Loses   two to six rows, and more than its registers hold, to the parts.
// Limits  those of the projection; rows of at most 4096. Rows of x that are not 16-byte aligned go through the parts. A row's bits do
//         not depend on the batch.
// Bytes   w once, x and the norm's weight once a CTA.
// Source  original; the contract is ops/norm_qkv_rope_kv_write.h.
#include "ops/norm_qkv_rope_kv_write.h"

#include "backends/cuda/kernels/linear_stream.h"
#include "backends/cuda/kernels/qkv_rope_kv_write.h"

namespace sluice::cuda {
namespace {

using Problem = NormQkvRopeKvWrite::Problem;

Refusal supports(const Problem& p, const DeviceInfo& d) {
  Refusal r;
  const Linear::Problem linear = QkvRopeKvWrite::project(p.qkv);
  need_linear_operands(r, linear, d);
  need_stream_rows(r, linear.tokens);
  need_turned_heads(r, p.qkv, kStreamSlab, "units of eight pairs");
  need_type(r, "norm_w", p.norm_w, DType::kBF16, "multiplies operands of the tensor cores");
  r.need(linear.width <= kStreamNormWidthMost, "width <= 4096 (boxes that a CTA's warps keep)", "width",
         linear.width);
  return r;
}

// The norm within costs less than a launch for one row, and for seven and eight. Fewer rows wait for x where a launch of the norm fills
// the time. Set by hand by steps of gpt-oss models (docs/notes/cuda-step-launches.md).
std::vector<Config> configs(const Problem& p, const DeviceInfo& d, const Policy&) {
  const int64_t rows = p.qkv.rope.rope.tokens;
  const double norm_us = rows == 1 || rows > 6 ? 0.5 : 2.8;
  const Linear::Problem linear = QkvRopeKvWrite::project(p.qkv);
  return {Config{.cost_us = linear_stream_us(linear, d) + kTurnUs + norm_us,
                 .workspace_bytes = static_cast<size_t>(bytes_of(linear.x, linear.tokens * linear.width)),
                 .launches = {linear_stream_launch(linear, d, kStreamSlab)}}};
}

std::string launch_text(const Problem&, const KernelLaunch& l) { return linear_stream_text(l); }

struct Launcher {
  static Status enqueue(const Problem&, std::span<const KernelLaunch>, const NormQkvRopeKvWrite::Args&,
                        Workspace, Stream);
};

}  // namespace

extern const Candidate<NormQkvRopeKvWrite> norm_qkv_rope_kv_write_stream_sm90 = {
    .name = "cuda.norm_qkv_rope_kv_write.stream_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .configs = configs,
    .enqueue_config = enqueue_config_of<NormQkvRopeKvWrite, Launcher>(),
    .launch_text = launch_text,
    .batch_invariant = true,
    .alignment_bytes = 16,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/kernels/qkv_rope_kv_write_stream.cuh"

namespace sluice::cuda {

extern const Candidate<RmsNorm> rms_norm_rows_sm90;

namespace {

template <class C>
struct NormedEnd : TurnedEnd<C> {
  static constexpr bool kNorms = true;
  struct Out : TurnedEnd<C>::Out {
    stream::Norm norm;
  };
};

// The workspace is for rows of x that are not aligned.
Status launch_apart(const Problem& p, const NormQkvRopeKvWrite::Args& a, Workspace w, Stream stream) {
  const RmsNorm::Problem norm = NormQkvRopeKvWrite::norm(p);
  const Tensor normed = make_tensor(w.data, norm.y, {norm.tokens, norm.hidden}, stream.where);
  SLUICE_TRY(rms_norm_rows_sm90.enqueue(norm, NormQkvRopeKvWrite::norm(a, normed), {}, stream));
  return launch_qkv_in_turn(p.qkv, NormQkvRopeKvWrite::qkv(a, normed), stream);
}

Status Launcher::enqueue(const Problem& p, std::span<const KernelLaunch> launches,
                         const NormQkvRopeKvWrite::Args& a, Workspace w, Stream stream) {
  if (p.qkv.rope.rope.tokens == 0) return {};
  if (!aligned_rows(a.x, tile::kMapStrideBytes)) return launch_apart(p, a, w, stream);
  const stream::Norm norm{.weight = a.norm_weight.as<const stream::B16>(), .eps = static_cast<float>(p.eps)};
  return launch_turned<NormedEnd>(
      norm_qkv_rope_kv_write_stream_sm90.name, p.qkv, launches[0], a, [&](auto& out) { out.norm = norm; },
      stream);
}

}  // namespace
}  // namespace sluice::cuda
#endif
