// The layer in double precision, one warp per output, straight from the formula.
#include <cuda_bf16.h>

#include <cmath>
#include <string>

#include "backends/cuda/launch.h"
#include "backends/cuda/tile/dependent.cuh"
#include "cuda/experts/experts.h"

namespace sluice::bench {
namespace {

constexpr int kWarps = 8;

__device__ double value_of(uint32_t code) {
  const int exponent = code >> 1 & 3, odd = code & 1;
  const double size = exponent == 0 ? 0.5 * odd : ldexp(1 + 0.5 * odd, exponent - 1);
  return code & 8 ? -size : size;
}

__device__ double value8_of(uint32_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double size = exponent == 0 ? ldexp(1.0 * mantissa, -9) : ldexp(8.0 + mantissa, exponent - 10);
  return code & 0x80 ? -size : size;
}
__device__ double f32_of(const uint8_t* at) {
  return __uint_as_float(at[0] | at[1] << 8 | at[2] << 16 | static_cast<uint32_t>(at[3]) << 24);
}

// A row of a matrix of one expert.
struct RowOf {
  WeightFormat format;
  const uint8_t *codes, *scales;
  int64_t width;
  __device__ double code(int64_t k) const {
    if (format.w == DType::kBF16) return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(codes)[k]);
    if (format.w == DType::kE4M3) return value8_of(codes[k]);
    const uint32_t pair = codes[k / 2];
    return value_of(k % 2 ? pair >> 4 : pair & 15);
  }
  __device__ double scale(int64_t k) const {
    if (!format.scaled()) return 1;
    switch (format.scales) {
      case WeightScales::kMx:
        return ldexp(1.0, static_cast<int>(scales[k / kMxBlock]) - 127);
      case WeightScales::kNv:
        return value8_of(scales[k / kNvBlock]) * f32_of(scales + width / kNvBlock);
      case WeightScales::kBlocks:
        return f32_of(scales + 4 * (k / kScaleColumns));
      default:
        return f32_of(scales);
    }
  }
  __device__ double at(int64_t k) const { return code(k) * scale(k); }
};
__device__ RowOf row_of(WeightFormat f, const uint8_t* matrix, const uint8_t* scales, int64_t row,
                        int64_t width) {
  const int64_t bytes = f.w == DType::kE2M1 ? width / 2 : f.w == DType::kE4M3 ? width : 2 * width;
  return {f, matrix + row * bytes, f.scaled() ? scales + row * f.row_scale_bytes(width) : nullptr, width};
}

// Returns the sum over k of row[k] * x(k) to all lanes.
template <class X>
__device__ double dot(const RowOf& row, int64_t width, X x) {
  double sum = 0;
  for (int64_t k = threadIdx.x % 32; k < width; k += 32) sum += row.at(k) * x(k);
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  return sum;
}

struct Sizes {
  int64_t experts, top_k, slots, hidden, intermediate;  // slots: experts per token, including shared ones
  double alpha, beta, limit;
  bool gated, interleaved;  // not gated: relu2; gated: swiglu, clamped if there is a limit
};

// The expert of a slot: a chosen expert, or a shared expert, whose slots come last.
__device__ int64_t expert_of(const ReferenceArgs& a, const Sizes& s, int64_t token, int64_t slot) {
  return slot < s.top_k ? a.ids[token * a.slots + slot] : s.experts + slot - s.top_k;
}

// Grid: features x (token, slot) pairs.
__global__ void hidden(ReferenceArgs a, Sizes s) {
  cuda::tile::wait_for_previous();
  const int64_t i = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32, pair = blockIdx.y;
  if (i >= s.intermediate) return;
  const int64_t token = a.sampled[pair / s.slots], e = expert_of(a, s, token, pair % s.slots);
  if (e < 0) return;
  const auto* x = static_cast<const __nv_bfloat16*>(a.x) + token * s.hidden;
  double z[2] = {0, 0};
  for (int up = 0; up < (s.gated ? 2 : 1); ++up) {
    const int64_t of_expert = !s.gated ? i : s.interleaved ? 2 * i + up : i + up * s.intermediate;
    const int64_t row = e * (s.gated ? 2 : 1) * s.intermediate + of_expert;
    z[up] = dot(row_of(a.format, a.experts.up, a.experts.up_scale, row, s.hidden), s.hidden,
                [x](int64_t k) { return static_cast<double>(__bfloat162float(x[k])); });
    if (a.experts.up_bias)
      z[up] += __bfloat162float(static_cast<const __nv_bfloat16*>(a.experts.up_bias)[row]);
  }
  double out = 0;
  if (!s.gated) {
    const double positive = z[0] > 0 ? z[0] : 0;
    out = positive * positive;
  } else {
    const double gate = fmin(z[0], s.limit), up = fmax(fmin(z[1], s.limit), -s.limit);
    out = gate / (1 + exp(-s.alpha * gate)) * (up + s.beta);
  }
  if (threadIdx.x % 32 == 0) a.h[pair * s.intermediate + i] = out;
}

// Grid: columns x tokens.
__global__ void output(ReferenceArgs a, Sizes s) {
  cuda::tile::wait_for_previous();
  const int64_t c = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32, sample = blockIdx.y;
  if (c >= s.hidden) return;
  const int64_t token = a.sampled[sample];
  double y = 0;
  for (int64_t k = 0; k < s.slots; ++k) {
    const int64_t e = expert_of(a, s, token, k);
    if (e < 0) continue;
    const int64_t row = e * s.hidden + c;
    const double* h = a.h + (sample * s.slots + k) * s.intermediate;
    double g = dot(row_of(a.format, a.experts.down, a.experts.down_scale, row, s.intermediate),
                   s.intermediate, [h](int64_t i) { return h[i]; });
    if (a.experts.down_bias)
      g += __bfloat162float(static_cast<const __nv_bfloat16*>(a.experts.down_bias)[row]);
    y += k < s.top_k ? a.weights[token * a.slots + k] * g : g;
  }
  if (threadIdx.x % 32 == 0) a.y[sample * s.hidden + c] = y;
}

unsigned blocks(int64_t warps) { return static_cast<unsigned>((warps + kWarps - 1) / kWarps); }

}  // namespace

Status reference_layer(const ExpertShape& shape, const ReferenceArgs& args, int64_t count, Stream stream) {
  if (shape.act != Activation::kSwiGlu && shape.act != Activation::kSwiGluClamped &&
      shape.act != Activation::kRelu2)
    return unsupported(std::string("bench.reference: wanted swiglu, swiglu_clamped or relu2, found ") +
                       std::string(word(shape.act)));
  const bool clamped = shape.act == Activation::kSwiGluClamped;
  const Sizes sizes{shape.experts(),
                    shape.top_k,
                    shape.top_k + args.shared,
                    shape.hidden,
                    shape.intermediate,
                    shape.alpha,
                    shape.beta,
                    clamped ? shape.limit : HUGE_VAL,
                    is_gated(shape.act),
                    shape.order == GateOrder::kInterleaved};
  const auto tokens = static_cast<unsigned>(count), pairs = static_cast<unsigned>(count * sizes.slots);
  SLUICE_TRY(cuda::launch("bench.reference_hidden", hidden,
                          {.grid = {blocks(shape.intermediate), pairs, 1}, .block = {32 * kWarps, 1, 1}},
                          stream, args, sizes));
  return cuda::launch("bench.reference_output", output,
                      {.grid = {blocks(shape.hidden), tokens, 1}, .block = {32 * kWarps, 1, 1}}, stream, args,
                      sizes);
}

}  // namespace sluice::bench
