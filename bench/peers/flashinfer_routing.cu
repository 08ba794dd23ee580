// FlashInfer's fused_topk_deepseek (the kernel of TensorRT-LLM's noAuxTc): ids and weights. FlashInfer has no kernel for Hopper that sorts
// into rows, so `what` must be 0.
#include "fused_moe/noAuxTcKernels.cu"
#include "peer.h"

namespace {

const char* supports(const sluice_peer_routing* p) {
  if (p->method != SLUICE_PEER_DEEPSEEK_V3) return "routes like DeepSeek V3 only";
  if (p->what != 0) return "ids and weights only";
  if (p->bias == nullptr) return "wants a bias";
  if (p->top_k > 8) return "top_k of at most 8";
  if (p->groups == 1) return p->experts <= 384 ? nullptr : "at most 384 experts in one group";
  const int64_t in_group = p->experts / p->groups;
  return p->experts <= 256 && in_group <= 32 && in_group * p->topk_groups <= 128 && p->topk_groups <= 4
             ? nullptr
             : "groups of at most 32 experts, 128 in the groups chosen, 256 in all";
}

size_t scratch_bytes(const sluice_peer_routing*) { return 0; }

int enqueue(const sluice_peer_routing* p, void* stream) {
  try {
    tensorrt_llm::kernels::invokeNoAuxTc<float, float, float, int32_t>(
        static_cast<float*>(const_cast<void*>(p->logits)), static_cast<float*>(const_cast<void*>(p->bias)),
        p->weights, p->ids, p->tokens, p->experts, p->groups, p->topk_groups, p->top_k, p->scale,
        p->dependent != 0, static_cast<cudaStream_t>(stream), nullptr);
  } catch (const std::exception&) {
    return 1;
  }
  return cudaPeekAtLastError();
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const sluice_peer* const* sluice_peers(int* count) {
  static const sluice_peer peer = {"flashinfer-topk-deepseek",
                                   PEER_VERSION,
                                   nullptr,
                                   nullptr,
                                   nullptr,
                                   nullptr,
                                   supports,
                                   scratch_bytes,
                                   enqueue};
  static const sluice_peer* const peers[] = {&peer};
  *count = 1;
  return peers;
}
