// The CUDA kernels that vLLM runs around its Triton fused_moe with bf16 experts: grouped_topk (DeepSeek V3), moe_align_block_size,
// silu_and_mul and moe_sum. Plain C functions for bf16_layer.py; each returns 0 or an error code.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cub/cub.cuh>
#include <cuda/std/functional>
#include <cuda/std/limits>
#include <tuple>
#include <type_traits>

#include "torch_shim.h"
#define moe moe_grouped
#include "moe/grouped_topk_kernels.cu"
#undef moe
#include "activation_kernels.cu"
#include "moe/moe_align_sum_kernels.cu"

namespace {

using bf16 = __nv_bfloat16;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int kThreads = 256;

template <int kTopK>
void sum(const void* g, void* y, int64_t tokens, int64_t hidden, cudaStream_t stream) {
  const int64_t vectors = tokens * hidden / 8;
  vllm::moe::moe_sum_vec_kernel<bf16, int32_t, kTopK, false>
      <<<static_cast<unsigned>(std::min<int64_t>((vectors + kThreads - 1) / kThreads, 65535)), kThreads, 0,
         stream>>>(static_cast<bf16*>(y), static_cast<const bf16*>(g), tokens, static_cast<int>(hidden),
                   kTopK * hidden, hidden, nullptr, nullptr, 0, 0);
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED const char* vllm_version() { return PEER_VERSION; }

// ids i32[tokens, top_k]; expert_map i32[experts] (a local expert, or -1) or null; sorted i32[rows], blocks
// i32[rows / block], padded i32[1]; scratch of (experts + 1) * 4 + 4096 bytes.
EXPORTED int vllm_align(const int32_t* ids, int64_t tokens, int64_t top_k, int64_t experts, int64_t block,
                        const int32_t* expert_map, int32_t* sorted, int32_t* blocks, int32_t* padded,
                        int64_t rows, void* scratch, void* stream) {
  sluice_shim::stream = static_cast<cudaStream_t>(stream);
  sluice_shim::scratch = static_cast<char*>(scratch);
  std::optional<Tensor> map;
  if (expert_map != nullptr) map = Tensor(expert_map, {experts}, ScalarType::Int);
  try {
    moe_align_block_size(Tensor(ids, {tokens, top_k}, ScalarType::Int), experts, block,
                         Tensor(sorted, {rows}, ScalarType::Int),
                         Tensor(blocks, {(rows + block - 1) / block}, ScalarType::Int),
                         Tensor(padded, {1}, ScalarType::Int), map, std::nullopt);
  } catch (const std::exception&) {
    return 1;
  }
  return cudaPeekAtLastError();
}

// h[rows, inner] = silu(z[:, :inner]) * z[:, inner:], bf16, inner in multiples of 8.
EXPORTED int vllm_silu_and_mul(void* h, const void* z, int64_t rows, int64_t inner, void* stream) {
  const int columns = static_cast<int>(inner);
  vllm::act_and_mul_kernel<bf16, __nv_bfloat162, vllm::silu_kernel<bf16>,
                           vllm::packed_silu_kernel<__nv_bfloat162>, true, true, false, false>
      <<<static_cast<unsigned>(rows), std::min(columns / 8, 1024), 0, static_cast<cudaStream_t>(stream)>>>(
          static_cast<bf16*>(h), static_cast<const bf16*>(z), columns, 0.f, 1.f, 0.f);
  return cudaPeekAtLastError();
}

// y[tokens, hidden] = the sum over k of g[tokens, top_k, hidden], bf16.
EXPORTED int vllm_sum(void* y, const void* g, int64_t tokens, int64_t top_k, int64_t hidden, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  if (hidden % 8 != 0) return 2;
  if (top_k == 6)
    sum<6>(g, y, tokens, hidden, on);
  else if (top_k == 8)
    sum<8>(g, y, tokens, hidden, on);
  else
    return 2;
  return cudaPeekAtLastError();
}

// DeepSeek V3's routing from f32 logits and bias: ids i32 and weights f32 [tokens, top_k], renormalized, times scale.
EXPORTED int vllm_grouped_topk(const float* logits, const float* bias, int32_t* ids, float* weights,
                               int64_t tokens, int64_t experts, int64_t groups, int64_t topk_groups,
                               int64_t top_k, double scale, void* stream) {
  namespace grouped = vllm::moe_grouped;
  try {
    grouped::invokeNoAuxTc<float, float, int32_t, grouped::SCORING_SIGMOID>(
        const_cast<float*>(logits), weights, ids, bias, tokens, experts, groups, topk_groups, top_k, true,
        scale, tokens <= grouped::PDLEnableTokens, static_cast<cudaStream_t>(stream));
  } catch (const std::exception&) {
    return 1;
  }
  return cudaPeekAtLastError();
}
