// Expert GEMM for problems that the tensor core kernels refuse: any weight layout, any types, any width. A
// warp computes one feature for up to eight rows of an expert. Its lanes divide k among them, decode each
// weight at the address that the layout's functions give, and add up their partial sums in a fixed order.
//
// Wins    problems that no other kernel accepts: f32 x, weights in the order of checkpoints or of the CPU's panels, widths that are not
//         a multiple of 8.
// Loses   wherever another kernel accepts the problem: this kernel has no tensor cores, and it reads weights again for every eight rows.
// Limits  none beyond the contract. A row's bits do not depend on the batch.
// Source  original; the contract is ops/expert_gemm.h.
#include "backends/cuda/card.h"
#include "backends/cuda/experts/cards.h"
#include "backends/cuda/experts/cost/cost.h"

namespace sluice::cuda {
namespace {

constexpr int kWarps = 8, kRows = 8;   // per CTA; rows of x per tile
constexpr int kFeatures = 4 * kWarps;  // per tile
constexpr int kBlocksAnSm = 4;
constexpr int kWidthStep = 32;  // k per step: one value per lane of a warp, and one mxfp4 scale
static_assert(kWidthStep == kMxBlock);

Refusal supports(const ExpertGemm::Problem&, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  return r;
}

// Not fitted to measurements. Counts issue slots, and the time that a warp waits for loads.
double cost_us(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  // Instructions that a lane executes for one weight and up to eight rows of x. An SM issues for 128 lanes at about 1.7 GHz.
  constexpr double kInstructions = 50, kPerUs = 128 * 1.7e3, kWaitUs = 0.6;
  const ExpertLoad load = expert_load(p);
  const double tiles = load.active * std::max(1.0, std::ceil(load.rows_each / kRows)) *
                       std::ceil(static_cast<double>(p.features) / kFeatures);
  const double steps =
      (is_gated(p.act) ? 2 : 1) * std::ceil(static_cast<double>(p.width) / kWidthStep) * kFeatures;
  const double issue = tiles * steps * kWidthStep * kInstructions / (kPerUs * d.cores);
  const double rounds = std::ceil(tiles / (kBlocksAnSm * d.cores));
  return stream_us<ExpertGemm>(p, d) + issue + rounds * steps / kWarps * kWaitUs;
}

struct Launcher {
  static Status enqueue(const ExpertGemm::Problem&, const ExpertGemm::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<ExpertGemm> expert_gemm_fma_sm90 = {
    .name = "cuda.expert_gemm.fma_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<ExpertGemm>,
    .enqueue = enqueue_of<ExpertGemm, Launcher>(),
    .batch_invariant = true,
    .alignment_bytes = 4,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/experts/parameters.cuh"
#include "backends/cuda/launch.h"
#include "backends/cuda/tile/dependent.cuh"

namespace sluice::cuda {
namespace {

// Position of a weight row. The layout row_major uses `row` alone.
struct Place {
  int64_t block, row;
};

template <WeightLayout kLayout>
__device__ __forceinline__ Place place_of(const ExpertParameters& p, bool gated, int64_t feature, bool up) {
  if constexpr (kLayout == WeightLayout::kFragments) {
    const FragmentRow r = fragment_row(gated, feature, up);
    return {r.block, r.row};
  } else if constexpr (kLayout == WeightLayout::kPanels16) {
    const PanelRow r = panel_row(gated, feature, up);
    return {r.panel, r.lane};
  } else {
    return {0, gated ? gated_row(p.gate_order, p.features, feature, up) : feature};
  }
}

// Weights of one expert.
template <WeightLayout kLayout, DType kW>
struct Weights {
  WeightFormat format;  // w is kW
  const uint8_t *w, *scales;
  FragmentShape fragments;
  PanelShape panels;
  int64_t width;

  // The weight, or the value of its code before scaling.
  __device__ __forceinline__ float code(const Place& at, int64_t k) const {
    const auto* numbers = reinterpret_cast<const __nv_bfloat16*>(w);
    if constexpr (kLayout == WeightLayout::kFragments) {
      const FragmentRow r{at.block, at.row};
      if constexpr (kW == DType::kBF16)
        return __bfloat162float(numbers[fragment_bf16_index(fragments, r, k)]);
      if constexpr (kW == DType::kE4M3) return value8(w[fragment_code8_index(fragments, r, k)]);
      const FragmentCode c = fragment_code(fragments, r, k);
      const uint32_t word = reinterpret_cast<const uint32_t*>(w)[c.word];
      return value(fragment_code_of(fragment_pair(word, c.pair), c.half));
    } else if constexpr (kLayout == WeightLayout::kPanels16) {
      const PanelRow r{at.block, at.row};
      if constexpr (kW == DType::kBF16) return __bfloat162float(numbers[panel_bf16_index(panels, r, k)]);
      if constexpr (kW == DType::kE4M3) return value8(w[panel_e4m3_index(panels, r, k)]);
      const NibbleAt n = panel_mxfp4_nibble(panels, r, k);
      return value(w[n.byte] >> n.shift & 15);
    } else {
      const int64_t i = at.row * width + k;
      if constexpr (kW == DType::kBF16) return __bfloat162float(numbers[i]);
      if constexpr (kW == DType::kE4M3) return value8(w[i]);
      return value(w[i / 2] >> (4 * (i % 2)) & 15);
    }
  }
  // The scale of the weights at k to k + 15, without the row's factor.
  __device__ __forceinline__ float scale(const Place& at, int64_t k) const {
    if (format.columns() == 0) return 1;
    if constexpr (kLayout == WeightLayout::kFragments) {
      const FragmentRow r{at.block, at.row};
      if (format.scales == WeightScales::kNv)
        return value8(fragment_nv_scale(scales[fragment_nv_index(fragments, r, k)]));
      if (format.scales == WeightScales::kBlocks)
        return reinterpret_cast<const float*>(scales)[fragment_block_scale_index(fragments, r, k)];
      const uint8_t stored = scales[fragment_scale_index(fragments, r, k)];
      return stored == kFragmentNan ? e8m0(255)
                                    : e8m0(fragment_scale(stored, scales[fragment_top_index(fragments, r)]));
    } else {
      const int64_t row_scales = at.row * format.row_scale_bytes(width);
      const uint8_t* one = scales + (kLayout == WeightLayout::kPanels16
                                         ? panel_scale_index(panels, format, {at.block, at.row}, k)
                                         : row_scales + k / format.columns() * format.column_scale_bytes());
      return format.scales == WeightScales::kMx   ? e8m0(*one)
             : format.scales == WeightScales::kNv ? value8(*one)
                                                  : f32(one);
    }
  }
  // The factor by which a row's sum is multiplied.
  __device__ __forceinline__ float row_factor(const Place& at) const {
    if constexpr (kLayout == WeightLayout::kFragments) {
      if (format.scales == WeightScales::kMx) return 1;
      const float factor = f32(scales + fragment_factor_index(fragments, format, {at.block, at.row}));
      return format.scales == WeightScales::kNv ? factor / 128 : factor;
    } else {
      if (!format.has_row_scale()) return 1;
      return f32(scales + (kLayout == WeightLayout::kPanels16
                               ? panel_row_scale_index(panels, format, {at.block, at.row})
                               : at.row * format.row_scale_bytes(width) + format.column_scales(width)));
    }
  }

 private:
  // An f32 whose four bytes are at any address.
  __device__ __forceinline__ static float f32(const uint8_t* at) {
    return __uint_as_float(at[0] | at[1] << 8 | at[2] << 16 | static_cast<uint32_t>(at[3]) << 24);
  }
  // The value of an e4m3 code: sign, four exponent bits, three mantissa bits; NaN if all bits but the sign are 1.
  __device__ __forceinline__ static float value8(uint32_t code) {
    const uint32_t size = code & 0x7F;
    const float value = size == 0x7F ? __uint_as_float(0x7fc00000u)
                        : size < 8   ? static_cast<float>(size) * 0x1p-9f
                                     : __uint_as_float((size + (120u << 3)) << 20);
    return code & 0x80 ? -value : value;
  }
  // The value of an e2m1 code: sign, two exponent bits, one mantissa bit.
  __device__ __forceinline__ static float value(uint32_t code) {
    const uint32_t exponent = code >> 1 & 3, mantissa = code & 1;
    const float size = exponent == 0 ? 0.5f * static_cast<float>(mantissa)
                                     : __uint_as_float((exponent + 126) << 23 | mantissa << 22);
    return code & 8 ? -size : size;
  }
  // The value of an e8m0 scale: 2^(bits - 127); 255 is NaN.
  __device__ __forceinline__ static float e8m0(int bits) {
    return __uint_as_float(bits == 255 ? 0x7fc00000u
                           : bits == 0 ? 0x00400000u
                                       : static_cast<uint32_t>(bits) << 23);
  }
};

struct Parameters {
  ExpertParameters p;
  FragmentShape fragments;
  PanelShape panels;
  int x_f32, gated;
  WeightFormat format;
};

__device__ __forceinline__ float load_x(const Parameters& q, int64_t at) {
  return q.x_f32 ? reinterpret_cast<const float*>(q.p.x)[at] : __bfloat162float(q.p.x[at]);
}

// Adds this lane's products of one weight row with kRows rows of x, which start at from[], to `sum`.
template <WeightLayout kLayout, DType kW>
__device__ __forceinline__ void add_up(float (&sum)[kRows], const Parameters& q,
                                       const Weights<kLayout, kW>& w, const Place& at,
                                       const int64_t (&from)[kRows], int rows) {
#pragma unroll
  for (float& s : sum) s = 0;
#pragma unroll 1
  for (int k = static_cast<int>(threadIdx.x % 32); k < q.p.width; k += kWidthStep) {
    const float code = w.code(at, k);
    [[maybe_unused]] float scale = 1;
    if constexpr (kW != DType::kBF16) scale = w.scale(at, k);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= rows) break;
      const float x = load_x(q, from[r] + k);
      sum[r] = kW != DType::kBF16 ? fmaf(x * code, scale, sum[r]) : fmaf(x, code, sum[r]);
    }
  }
}

// Sums of `sum` over all lanes. Lane i returns the total of row i.
__device__ __forceinline__ float total(const float (&sum)[kRows]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  float mine = 0;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    float all = sum[r];
#pragma unroll
    for (int far = 16; far > 0; far /= 2) all += __shfl_xor_sync(0xffffffffu, all, far);
    mine = lane == r ? all : mine;
  }
  return mine;
}

__device__ __forceinline__ void write(const ExpertParameters& p, const tile::ActivationValues& act,
                                      bool gated, const ExpertTile& t, int row, int feature, float gate,
                                      float up) {
  const float in = p.weights ? p.weights[p.order[row]] : 1.f;
  const int64_t first = static_cast<int64_t>(t.expert) * (gated ? 2 * p.features : p.features);
  const auto biased = [&](float sum, int64_t at) {
    return fmaf(sum, in, p.bias ? load_bias(p, first + at) : 0.f);
  };
  float z[1], u[1];
  if (gated) {
    z[0] = biased(gate, gated_row(p.gate_order, p.features, feature, false));
    u[0] = biased(up, gated_row(p.gate_order, p.features, feature, true));
    tile::activate_gated(act, z, u);
  } else {
    z[0] = biased(gate, feature);
    tile::activate_plain(act, z);
  }
  const int64_t to = row * p.y_stride + feature;
  if (p.y_f32) {
    static_cast<float*>(p.y)[to] = z[0];
  } else {
    static_cast<__nv_bfloat16*>(p.y)[to] = __float2bfloat16_rn(z[0]);
  }
}

template <WeightLayout kLayout, DType kW>
__global__ void __launch_bounds__(32 * kWarps) expert_gemm_fma(const __grid_constant__ Parameters q) {
  extern __shared__ int32_t before[];  // [experts + 1]
  __shared__ int32_t scratch[kWarps];
  tile::wait_for_previous();
  tile::release_next();
  const ExpertParameters& p = q.p;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const PlainSchedule list{before, ceil_div(p.features, kFeatures), kFeatures, kRows};
  count_expert_tiles(p, list, before, scratch);
  const int all = list.tiles(p);
#pragma unroll 1
  for (int index = static_cast<int>(blockIdx.x); index < all; index += static_cast<int>(gridDim.x)) {
    const ExpertTile t = list.at(p, index);
    const Weights<kLayout, kW> w{
        q.format, p.w + t.expert * p.w_bytes, p.w_scale + t.expert * p.scale_bytes, q.fragments, q.panels,
        p.width};
    const tile::ActivationValues act = activation_of(p, t.expert);
    int64_t from[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = t.row + min(r, t.rows - 1);
      from[r] = (p.slots > 0 ? p.order[row] / p.slots : row) * p.x_stride;
    }
#pragma unroll 1
    for (int i = warp; i < kFeatures; i += kWarps) {
      const int feature = t.first_block + i;
      if (feature >= p.features) break;
      float sum[kRows], gate = 0, up = 0;
#pragma unroll 1
      for (int half = 0; half < 1 + q.gated; ++half) {
        const Place place = place_of<kLayout>(p, q.gated, feature, half != 0);
        add_up(sum, q, w, place, from, t.rows);
        float all = total(sum);
        if constexpr (kW != DType::kBF16) all *= w.row_factor(place);
        (half == 0 ? gate : up) = all;
      }
      if (lane < t.rows) write(p, act, q.gated, t, t.row + lane, feature, gate, up);
    }
  }
}

template <WeightLayout kLayout>
auto kernel_of(DType w) {
  return w == DType::kE2M1   ? expert_gemm_fma<kLayout, DType::kE2M1>
         : w == DType::kE4M3 ? expert_gemm_fma<kLayout, DType::kE4M3>
                             : expert_gemm_fma<kLayout, DType::kBF16>;
}

Status Launcher::enqueue(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, Workspace, Stream stream) {
  if (p.rows == 0) return {};
  const int sms = queue_of(stream).sms;
  Parameters q{.p = expert_parameters(p, a),
               .fragments = ExpertGemm::fragments(p),
               .panels = ExpertGemm::panels(p),
               .x_f32 = p.x == DType::kF32,
               .gated = is_gated(p.act),
               .format = ExpertGemm::format(p)};
  if (p.layout == WeightLayout::kRowMajor) {
    const int64_t rows = ExpertGemm::weight_rows(p);
    q.p.w_bytes = bytes_of(p.w, rows * p.width);
    q.p.scale_bytes = rows * ExpertGemm::format(p).row_scale_bytes(p.width);
  } else {
    q.p.w_bytes = ExpertGemm::packed_bytes(p), q.p.scale_bytes = ExpertGemm::packed_scale_bytes(p);
  }
  const Launch how{.grid = {static_cast<unsigned>(kBlocksAnSm * sms), 1, 1},
                   .block = {32 * kWarps, 1, 1},
                   .shared_bytes = static_cast<size_t>(p.experts + 1) * sizeof(int32_t)};
  const auto kernel = p.layout == WeightLayout::kFragments  ? kernel_of<WeightLayout::kFragments>(p.w)
                      : p.layout == WeightLayout::kPanels16 ? kernel_of<WeightLayout::kPanels16>(p.w)
                                                            : kernel_of<WeightLayout::kRowMajor>(p.w);
  return launch(expert_gemm_fma_sm90.name, kernel, how, stream, q);
}

}  // namespace

}  // namespace sluice::cuda
#endif
