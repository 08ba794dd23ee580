// Masks logits. A thread handles four logits of a row; in each of its four steps a warp handles one word of bits.
//
// Wins    always: it is the only kernel of MaskLogits. It only moves bytes, and the accesses of a warp are
//         adjacent.
// Bytes   to apply a mask, each logit is read once and written once or twice; to restore it, read once and
//         written once.
// Source  original; the contract is ops/mask_logits.h.
#include "backends/cuda/card.h"
#include "ops/mask_logits.h"

namespace sluice::cuda {
namespace {

Refusal supports(const MaskLogits::Problem&, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  return r;
}

struct Launcher {
  static Status enqueue(const MaskLogits::Problem&, const MaskLogits::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<MaskLogits> mask_logits_rows_sm90 = {
    .name = "cuda.mask_logits.rows_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = stream_us<MaskLogits>,
    .workspace_bytes = no_workspace<MaskLogits>,
    .enqueue = enqueue_of<MaskLogits, Launcher>(),
    .batch_invariant = true,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/launch.h"
#include "backends/cuda/tile/dependent.cuh"

namespace sluice::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kOfBlock = 4 * kThreads;  // logits per CTA

struct Parameters {
  const int32_t* row;
  const uint32_t* allowed;
  float* raw;
  float* logits;
  int64_t stride;  // elements between rows
  int rows, vocab, words;
};

// Grid: logits of a row along x, masks along y. If there are more masks than gridDim.y, a CTA loops over masks.
template <MaskWay kWay>
__global__ void __launch_bounds__(kThreads)
    mask_logits(const __grid_constant__ Parameters p, const __grid_constant__ int masks) {
  tile::release_next();
  tile::wait_for_previous();
  for (int64_t mask = blockIdx.y; mask < masks; mask += gridDim.y) {
    const int row = p.row[mask];
    if (row < 0 || row >= p.rows) continue;
    float* const logits = p.logits + row * p.stride;
    float* const raw = p.raw + mask * p.vocab;
    const int begin = static_cast<int>(blockIdx.x) * kOfBlock + static_cast<int>(threadIdx.x);
#pragma unroll
    for (int i = begin; i < begin + kOfBlock; i += kThreads) {
      if (i >= p.vocab) break;
      if constexpr (kWay == MaskWay::kApply) {
        raw[i] = logits[i];
        const uint32_t word = p.allowed[mask * p.words + i / 32];
        if ((word >> (i % 32) & 1u) == 0) logits[i] = __int_as_float(0xff800000);
      } else {
        logits[i] = raw[i];
      }
    }
  }
}

Status Launcher::enqueue(const MaskLogits::Problem& p, const MaskLogits::Args& a, Workspace, Stream stream) {
  if (p.masks == 0) return {};
  const Parameters parameters{.row = a.row.as<const int32_t>(),
                              .allowed = a.allowed.as<const uint32_t>(),
                              .raw = a.raw.as<float>(),
                              .logits = a.logits.as<float>(),
                              .stride = a.logits.stride[0],
                              .rows = static_cast<int>(p.rows),
                              .vocab = static_cast<int>(p.vocab),
                              .words = static_cast<int>(p.words())};
  constexpr int64_t kGridMax = 65535;
  const Launch how{.grid = {static_cast<unsigned>((p.vocab + kOfBlock - 1) / kOfBlock),
                            static_cast<unsigned>(p.masks < kGridMax ? p.masks : kGridMax), 1},
                   .block = {kThreads, 1, 1}};
  const auto kernel =
      p.way == MaskWay::kApply ? mask_logits<MaskWay::kApply> : mask_logits<MaskWay::kRestore>;
  return launch(mask_logits_rows_sm90.name, kernel, how, stream, parameters, static_cast<int>(p.masks));
}

}  // namespace
}  // namespace sluice::cuda
#endif
