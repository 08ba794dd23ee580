// vLLM's routing: topk_softmax (gpt-oss), grouped_topk (DeepSeek V3) and topk_softplus_sqrt (DeepSeek V4), each followed by
// moe_align_block_size if rows must be sorted by expert. As in vLLM, topk_softmax and topk_softplus_sqrt always use dependent launches,
// grouped_topk up to 16 tokens.
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
// These files define the same names in vllm::moe, so each gets a namespace of its own.
// grouped_topk_kernels.cu comes first: its WARP_SIZE is a constant, the others' is a macro.
#define moe moe_grouped
#include "moe/grouped_topk_kernels.cu"
#undef moe
#define moe moe_softmax
#include "moe/topk_softmax_kernels.cu"
#undef moe
#define moe moe_softplus
#include "moe/topk_softplus_sqrt_kernels.cu"
#undef moe
#include "moe/moe_align_sum_kernels.cu"

#include "peer.h"

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// The rows per block in vLLM's default Triton configuration; moe_align_block_size pads to it.
int64_t block_rows(int64_t tokens) {
  return tokens <= 32 ? 16 : tokens <= 96 ? 32 : tokens <= 512 ? 64 : 128;
}

int64_t padded_rows(const sluice_peer_routing* p) {
  const int64_t pairs = p->tokens * p->top_k, block = block_rows(p->tokens);
  const int64_t rows = pairs < p->experts ? pairs * block : pairs + p->experts * (block - 1);
  return (rows + block - 1) / block * block;
}

bool is_one_of(int64_t experts, std::initializer_list<int64_t> known) {
  return std::find(known.begin(), known.end(), experts) != known.end();
}

const char* supports(const sluice_peer_routing* p) {
  if (p->experts > 992) return "needs at most 992 experts (moe_align_block_size)";
  switch (p->method) {
    case SLUICE_PEER_SOFTMAX_CHOSEN:
      if (p->bias != nullptr) return "does not support a bias; topk_softmax's bias differs from gpt-oss's";
      if (p->scale != 1) return "needs scale 1";
      return is_one_of(p->experts, {1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 320, 384, 448, 512, 576})
                 ? nullptr
                 : "topk_softmax has no fast path for this number of experts";
    case SLUICE_PEER_DEEPSEEK_V3:
      if (p->bias == nullptr) return "needs a bias";
      return p->experts % p->groups == 0 && p->groups <= 32 && p->top_k <= 32 ? nullptr
                                                                              : "needs groups of equal size";
    case SLUICE_PEER_SQRT_SOFTPLUS:
      return is_one_of(p->experts, {1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 320, 384, 448, 512, 576})
                 ? nullptr
                 : "topk_softplus_sqrt does not support this number of experts";
  }
  return "does not support this routing method";
}

// Source rows, workspace, sorted ids, experts of blocks, their count and cumulative counts.
size_t scratch_bytes(const sluice_peer_routing* p) {
  return static_cast<size_t>(p->tokens * p->top_k + 2 * padded_rows(p) + 2 * p->experts) * 4 + 8 * 256;
}

void choose(const sluice_peer_routing* p, cudaStream_t stream) {
  const auto* logits = static_cast<const float*>(p->logits);
  const auto* bias = static_cast<const float*>(p->bias);
  const auto tokens = static_cast<int>(p->tokens), experts = static_cast<int>(p->experts);
  const auto top_k = static_cast<int>(p->top_k);
  if (p->method == SLUICE_PEER_DEEPSEEK_V3) {
    namespace grouped = vllm::moe_grouped;
    grouped::invokeNoAuxTc<float, float, int32_t, grouped::SCORING_SIGMOID>(
        const_cast<float*>(logits), p->weights, p->ids, bias, tokens, experts, p->groups, p->topk_groups,
        top_k, true, p->scale, tokens <= grouped::PDLEnableTokens, stream);
    return;
  }
  int* source_rows = static_cast<int*>(sluice_shim::take(static_cast<size_t>(p->tokens) * p->top_k * 4));
  if (p->method == SLUICE_PEER_SOFTMAX_CHOSEN)
    vllm::moe_softmax::topkGatingKernelLauncher<int, float, vllm::moe_softmax::SCORING_SOFTMAX>(
        logits, p->weights, p->ids, source_rows, nullptr, tokens, experts, top_k, true, nullptr, 1.0, stream,
        nullptr);
  else
    vllm::moe_softplus::topkGatingSoftplusSqrtKernelLauncher<int, float>(
        logits, p->weights, p->ids, source_rows, tokens, experts, top_k, true, p->scale, bias, false,
        static_cast<const int*>(nullptr), static_cast<const int*>(nullptr), stream, nullptr, nullptr, 0);
}

int enqueue(const sluice_peer_routing* p, void* stream) {
  sluice_shim::stream = static_cast<cudaStream_t>(stream);
  sluice_shim::scratch = static_cast<char*>(p->scratch);
  try {
    choose(p, sluice_shim::stream);
    if (p->what == 1) {
      const int64_t rows = padded_rows(p), block = block_rows(p->tokens);
      const auto make = [](int64_t size) {
        return torch::stable::new_empty(Tensor(), {size}, ScalarType::Int);
      };
      const Tensor sorted = make(rows), experts_of_blocks = make(rows / block), padded = make(1);
      moe_align_block_size(Tensor(p->ids, {p->tokens, p->top_k}, ScalarType::Int), p->experts, block, sorted,
                           experts_of_blocks, padded, std::nullopt, std::nullopt);
    }
  } catch (const std::exception&) {
    return 1;
  }
  return cudaPeekAtLastError();
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const sluice_peer* const* sluice_peers(int* count) {
  static const sluice_peer peer = {"vllm",  PEER_VERSION, nullptr,       nullptr, nullptr,
                                   nullptr, supports,     scratch_bytes, enqueue};
  static const sluice_peer* const peers[] = {&peer};
  *count = 1;
  return peers;
}
