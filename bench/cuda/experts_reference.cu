// The layer in double precision, one warp a number, straight from the formula.
#include <cuda_bf16.h>

#include "backends/cuda/launch.h"
#include "backends/cuda/tile/dependent.cuh"
#include "cuda/experts.h"

namespace sluice::bench {
namespace {

constexpr int kWarps = 8;

__device__ double value_of(uint32_t code) {
  const int exponent = code >> 1 & 3, odd = code & 1;
  const double size = exponent == 0 ? 0.5 * odd : ldexp(1 + 0.5 * odd, exponent - 1);
  return code & 8 ? -size : size;
}

// Sum over k of row[k] * x(k); the whole warp has it.
template <class X>
__device__ double dot(const uint8_t* row, const uint8_t* scales, int64_t width, X x) {
  double sum = 0;
  for (int64_t k = 2 * (threadIdx.x % 32); k < width; k += 64) {
    const double scale = ldexp(1.0, static_cast<int>(scales[k / 32]) - 127);
    const uint32_t pair = row[k / 2];
    sum += scale * (value_of(pair & 15) * x(k) + value_of(pair >> 4) * x(k + 1));
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  return sum;
}

struct Sizes {
  int64_t top_k, hidden, intermediate;
  double alpha, beta, limit;
  bool interleaved;
};

// Grid (features, pairs of token and slot).
__global__ void hidden(ReferenceArgs a, Sizes s) {
  cuda::tile::wait_for_previous();
  const int64_t i = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32, pair = blockIdx.y;
  if (i >= s.intermediate) return;
  const int64_t token = a.sampled[pair / s.top_k], e = a.ids[token * s.top_k + pair % s.top_k];
  const auto* x = static_cast<const __nv_bfloat16*>(a.x) + token * s.hidden;
  double z[2];
  for (int up = 0; up < 2; ++up) {
    const int64_t of_expert = s.interleaved ? 2 * i + up : i + up * s.intermediate;
    const int64_t row = e * 2 * s.intermediate + of_expert;
    z[up] = dot(a.experts.up + row * (s.hidden / 2), a.experts.up_scale + row * (s.hidden / 32), s.hidden,
                [x](int64_t k) { return static_cast<double>(__bfloat162float(x[k])); });
    if (a.experts.up_bias)
      z[up] += __bfloat162float(static_cast<const __nv_bfloat16*>(a.experts.up_bias)[row]);
  }
  const double gate = fmin(z[0], s.limit), up = fmax(fmin(z[1], s.limit), -s.limit);
  if (threadIdx.x % 32 == 0)
    a.h[pair * s.intermediate + i] = gate / (1 + exp(-s.alpha * gate)) * (up + s.beta);
}

// Grid (columns, tokens).
__global__ void output(ReferenceArgs a, Sizes s) {
  cuda::tile::wait_for_previous();
  const int64_t c = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32, sample = blockIdx.y;
  if (c >= s.hidden) return;
  const int64_t token = a.sampled[sample];
  double y = 0;
  for (int64_t k = 0; k < s.top_k; ++k) {
    const int64_t row = a.ids[token * s.top_k + k] * s.hidden + c;
    const double* h = a.h + (sample * s.top_k + k) * s.intermediate;
    double g =
        dot(a.experts.down + row * (s.intermediate / 2), a.experts.down_scale + row * (s.intermediate / 32),
            s.intermediate, [h](int64_t i) { return h[i]; });
    if (a.experts.down_bias)
      g += __bfloat162float(static_cast<const __nv_bfloat16*>(a.experts.down_bias)[row]);
    y += a.weights[token * s.top_k + k] * g;
  }
  if (threadIdx.x % 32 == 0) a.y[sample * s.hidden + c] = y;
}

unsigned blocks(int64_t warps) { return static_cast<unsigned>((warps + kWarps - 1) / kWarps); }

}  // namespace

Status reference_layer(const ExpertShape& shape, const ReferenceArgs& args, int64_t count, Stream stream) {
  const Sizes sizes{shape.top_k,  shape.hidden,  shape.intermediate, shape.alpha(),
                    shape.beta(), shape.limit(), shape.gpt_oss};
  const auto tokens = static_cast<unsigned>(count), pairs = static_cast<unsigned>(count * shape.top_k);
  SLUICE_TRY(cuda::launch("bench.reference_hidden", hidden,
                          {.grid = {blocks(shape.intermediate), pairs, 1}, .block = {32 * kWarps, 1, 1}},
                          stream, args, sizes));
  return cuda::launch("bench.reference_output", output,
                      {.grid = {blocks(shape.hidden), tokens, 1}, .block = {32 * kWarps, 1, 1}}, stream, args,
                      sizes);
}

}  // namespace sluice::bench
