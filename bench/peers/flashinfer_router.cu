// FlashInfer's router GEMMs: tinygemm2 (bf16 logits, any shape) and the low-latency kernel for DeepSeek V3's and Kimi
// K2's shapes (at most 16 tokens, f32 or bf16 logits). FlashInfer's files are found by -I at build time.
#include "tinygemm2.cu"
// tinygemm2.cu comes first, because it names cuTensorMapEncodeTiled, which the shim redirects.
#include "dsv3_router_gemm.cu"

#include "peer.h"

namespace {

using bf16 = __nv_bfloat16;

const char* tinygemm_supports(const sluice_peer_router* p) {
  if (p->w_is_f32) return "multiplies bf16 weights only";
  if (p->y_is_f32) return "writes bf16 logits only";
  if (p->hidden % 8 != 0) return "needs hidden in multiples of 8 (TMA rows of 16 bytes)";
  if (p->tokens < 1 || p->tokens > 8 * 65535) return "needs 1 to 524280 tokens";
  return nullptr;
}

size_t no_scratch(const sluice_peer_router*) { return 0; }
void* prepare_nothing(const sluice_peer_router*, void*) { return nullptr; }

template <bool kBias>
void tinygemm(const sluice_peer_router* p, cudaStream_t stream) {
  flashinfer::tinygemm2::launch_tinygemm2<kBias>(
      static_cast<bf16*>(const_cast<void*>(p->x)), static_cast<bf16*>(const_cast<void*>(p->w)),
      static_cast<bf16*>(p->y), static_cast<bf16*>(const_cast<void*>(p->bias)), static_cast<int>(p->tokens),
      static_cast<int>(p->experts), static_cast<int>(p->hidden), stream, p->dependent != 0);
}

int tinygemm_enqueue(const sluice_peer_router* p, void*, void*, void* stream) {
  try {
    if (p->bias != nullptr)
      tinygemm<true>(p, static_cast<cudaStream_t>(stream));
    else
      tinygemm<false>(p, static_cast<cudaStream_t>(stream));
  } catch (const std::exception&) {
    return 1;
  }
  return 0;
}

// The shapes that FlashInfer instantiates.
bool is_dsv3_shape(const sluice_peer_router* p) {
  return p->hidden == 7168 && (p->experts == 256 || p->experts == 384 || (p->experts == 128 && !p->y_is_f32));
}

const char* dsv3_supports(const sluice_peer_router* p) {
  if (p->w_is_f32) return "multiplies bf16 weights only";
  if (p->bias != nullptr) return "does not support a bias";
  if (p->tokens < 1 || p->tokens > 16) return "needs 1 to 16 tokens";
  if (!is_dsv3_shape(p)) return "needs hidden 7168 with 256 or 384 experts (or 128 with bf16 logits)";
  return nullptr;
}

template <class Out, int kExperts>
void dsv3(const sluice_peer_router* p, cudaStream_t stream) {
  flashinfer::trtllm_dsv3_router_gemm::LoopUnroller<1, 16, kExperts, 7168>::unroll(
      static_cast<int>(p->tokens), static_cast<Out*>(p->y), static_cast<const bf16*>(p->x),
      static_cast<const bf16*>(p->w), stream, p->dependent != 0);
}

int dsv3_enqueue(const sluice_peer_router* p, void*, void*, void* raw_stream) {
  const auto stream = static_cast<cudaStream_t>(raw_stream);
  try {
    if (p->y_is_f32)
      p->experts == 256 ? dsv3<float, 256>(p, stream) : dsv3<float, 384>(p, stream);
    else if (p->experts == 128)
      dsv3<bf16, 128>(p, stream);
    else
      p->experts == 256 ? dsv3<bf16, 256>(p, stream) : dsv3<bf16, 384>(p, stream);
  } catch (const std::exception&) {
    return 1;
  }
  return 0;
}

const sluice_peer kTinygemm = {
    "flashinfer-tinygemm", PEER_VERSION, tinygemm_supports, no_scratch, prepare_nothing,
    tinygemm_enqueue,      nullptr,      nullptr,           nullptr};
const sluice_peer kDsv3 = {"flashinfer-dsv3", PEER_VERSION, dsv3_supports, no_scratch, prepare_nothing,
                           dsv3_enqueue,      nullptr,      nullptr,       nullptr};
const sluice_peer* const kPeers[] = {&kTinygemm, &kDsv3};

}  // namespace

extern "C" __attribute__((visibility("default"))) const sluice_peer* const* sluice_peers(int* count) {
  *count = 2;
  return kPeers;
}
