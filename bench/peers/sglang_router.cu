// SGLang's tiny_gemm (at most 16 tokens): one thread holds 16 elements of K, and weights are loaded before the dependent wait.
// SGLang takes shapes as template arguments. As in tiny_gemm.py, n_split, the experts per CTA, is such that all CTAs run on the GPU
// at once. SGLang compiles the kernel for dependent launches; without the launch attribute its waits return immediately.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "gemm/tiny_gemm.cuh"
#include "peer.h"

namespace {

constexpr uint32_t kMultiprocessors = 132;
constexpr uint32_t kTokensMax = 16;
using bf16_t = __nv_bfloat16;
using Kernel = void (*)(sglang::TinyGEMMParams);

struct Launch {
  Kernel kernel;
  uint32_t blocks, threads;
};

constexpr uint32_t split_of(uint32_t n, uint32_t k) {
  const uint32_t most = k / 16 / kTokensMax;
  uint32_t last = 1;
  for (uint32_t split = 1; split <= most && split <= n; ++split) {
    if (n % split != 0) continue;
    last = split;
    if (n / split <= kMultiprocessors) break;
  }
  return last;
}

template <uint32_t N, uint32_t K, std::size_t... I>
Launch launch_of(int64_t tokens, std::index_sequence<I...>) {
  using Trait = sglang::GEMMTraitN<N, K, split_of(N, K), 32, bf16_t>;
  static const Kernel kernels[] = {sglang::tiny_n_gemm_kernel<Trait, I + 1, float, true, bf16_t>...};
  return {kernels[tokens - 1], Trait::kNumBlocks, Trait::kBlockSize};
}

template <uint32_t N, uint32_t K>
Launch launch_of(const sluice_peer_router* p) {
  return launch_of<N, K>(p->tokens, std::make_index_sequence<kTokensMax>());
}

Launch find_launch(const sluice_peer_router* p) {
  if (p->hidden == 4096 && p->experts == 256) return launch_of<256, 4096>(p);
  if (p->hidden == 7168 && p->experts == 256) return launch_of<256, 7168>(p);
  if (p->hidden == 7168 && p->experts == 384) return launch_of<384, 7168>(p);
  if (p->hidden == 4096 && p->experts == 512) return launch_of<512, 4096>(p);
  if (p->hidden == 5120 && p->experts == 384) return launch_of<384, 5120>(p);
  return {nullptr, 0, 0};
}

const char* supports(const sluice_peer_router* p) {
  if (p->w_is_f32) return "multiplies bf16 weights only";
  if (p->bias != nullptr) return "does not support a bias";
  if (!p->y_is_f32) return "writes f32 logits only, which SGLang's routers use";
  if (p->tokens < 1 || p->tokens > kTokensMax) return "needs 1 to 16 tokens";
  if (p->hidden % 512 != 0) return "needs hidden in multiples of 512 (whole warps of 16 elements per thread)";
  return find_launch(p).kernel == nullptr
             ? "was not compiled for this shape (find_launch in sglang_router.cu)"
             : nullptr;
}

size_t scratch_bytes(const sluice_peer_router*) { return 0; }
void* prepare(const sluice_peer_router*, void*) { return nullptr; }

int enqueue(const sluice_peer_router* p, void*, void*, void* stream) {
  const Launch launch = find_launch(p);
  if (launch.kernel == nullptr) return 1;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = launch.blocks;
  config.blockDim = launch.threads;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &attribute;
  config.numAttrs = p->dependent ? 1 : 0;
  const sglang::TinyGEMMParams params = {p->y, static_cast<const bf16_t*>(p->x), p->w, p->hidden};
  return cudaLaunchKernelEx(&config, launch.kernel, params);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const sluice_peer* const* sluice_peers(int* count) {
  static const sluice_peer peer = {
      "sglang-tiny-gemm", PEER_VERSION, supports, scratch_bytes, prepare, enqueue, nullptr, nullptr, nullptr};
  static const sluice_peer* const peers[] = {&peer};
  *count = 1;
  return peers;
}
