// FlashInfer's fused_topk_deepseek (TensorRT-LLM's noAuxTc kernel): ids and weights. FlashInfer has no Hopper kernel that sorts rows by
// expert, so `what` must be 0.
#include "fused_moe/noAuxTcKernels.cu"
#include "peer.h"

namespace {

const char* supports(const sluice_peer_routing* p) {
  if (p->method != SLUICE_PEER_DEEPSEEK_V3) return "supports DeepSeek V3's routing only";
  if (p->what != 0) return "writes ids and weights only";
  if (p->bias == nullptr) return "needs a bias";
  if (p->top_k > 8) return "needs top_k <= 8";
  if (p->groups == 1) return p->experts <= 384 ? nullptr : "needs at most 384 experts in one group";
  const int64_t in_group = p->experts / p->groups;
  return p->experts <= 256 && in_group <= 32 && in_group * p->topk_groups <= 128 && p->topk_groups <= 4
             ? nullptr
             : "needs groups of at most 32 experts, at most 128 experts in the chosen groups, and at most "
               "256 in all";
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
