// vLLM's ll_bf16 router GEMM (CuTe DSL; at most 16 tokens): dot products up to 4 tokens, split-K over a cluster above.
// vllm_ll_bf16_export.py compiled the kernels; this file launches the cubins with the grids and arguments of their Python side. vLLM
// compiles them with dependent launch; without the launch attribute their waits return immediately.
#include <cuda_runtime.h>

#include <mutex>

#include "peer.h"

namespace {

struct Cubin {
  const unsigned char* data;
  const char* kernel;
  int is_splitk;
  int a, b, c;  // dotprod: M, K, threads; splitk: CTAs along K, stages, 0
};

struct Use {
  int m, k, n, y_is_f32, cubin;
};

#include "ll_bf16_cubins.h"

constexpr int kCubinCount = sizeof kCubins / sizeof kCubins[0];

const Use* find_use(const sluice_peer_router* p) {
  for (const Use& use : kUses)
    if (use.m == p->tokens && use.k == p->hidden && use.n == p->experts && use.y_is_f32 == (p->y_is_f32 != 0))
      return &use;
  return nullptr;
}

const char* supports(const sluice_peer_router* p) {
  if (p->w_is_f32) return "multiplies bf16 weights only";
  if (p->bias != nullptr) return "does not support a bias";
  if (p->tokens < 1 || p->tokens > 16) return "needs 1 to 16 tokens";
  if (find_use(p) == nullptr) return "was not compiled for this shape (SHAPES in vllm_ll_bf16_export.py)";
  return nullptr;
}

size_t scratch_bytes(const sluice_peer_router*) { return 0; }

// Bytes of dynamic shared memory, as the kernels' Python sides compute them.
unsigned shared_bytes(const Cubin& cubin) {
  if (!cubin.is_splitk) return static_cast<unsigned>(cubin.a * 4 * (cubin.c / 32));
  return static_cast<unsigned>(cubin.b *
                               (2 * 16 * 256 * 2 + 2 * 8));  // per stage: tiles of x and w, two barriers
}

// The loaded kernel of a cubin, or null.
cudaKernel_t load(int index) {
  static std::mutex mutex;
  static cudaKernel_t kernels[kCubinCount] = {};
  const std::lock_guard<std::mutex> lock(mutex);
  if (kernels[index] != nullptr) return kernels[index];
  const Cubin& cubin = kCubins[index];
  cudaLibrary_t library;
  cudaKernel_t kernel;
  if (cudaLibraryLoadData(&library, cubin.data, nullptr, nullptr, 0, nullptr, nullptr, 0) != cudaSuccess ||
      cudaLibraryGetKernel(&kernel, library, cubin.kernel) != cudaSuccess ||
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(shared_bytes(cubin))) != cudaSuccess)
    return nullptr;
  return kernels[index] = kernel;
}

void* prepare(const sluice_peer_router* p, void*) {
  const Use* use = find_use(p);
  return use == nullptr ? nullptr : load(use->cubin);
}

// A tensor argument of the DSL: a pointer, the sizes that are not constants of the kernel, the stride of the rows.
struct Matrix {
  const void* data;
  int32_t rows, columns;
  int64_t stride;
};
struct FixedMatrix {
  const void* data;
  int64_t stride;
};
struct OneSizeMatrix {
  const void* data;
  int32_t size, unused;
  int64_t stride;
};

int enqueue(const sluice_peer_router* p, void*, void* prepared, void* stream) {
  const Use* use = find_use(p);
  if (use == nullptr || prepared == nullptr) return 1;
  const Cubin& cubin = kCubins[use->cubin];
  const auto tokens = static_cast<int32_t>(p->tokens), hidden = static_cast<int32_t>(p->hidden);
  const auto experts = static_cast<int32_t>(p->experts);

  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config = {};
  config.attrs = attributes;
  config.dynamicSmemBytes = shared_bytes(cubin);
  config.stream = static_cast<cudaStream_t>(stream);
  if (p->dependent) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cubin.is_splitk) {
    Matrix x = {p->x, tokens, hidden, hidden}, w = {p->w, experts, hidden, hidden},
           y = {p->y, tokens, experts, experts};
    float scale = 1;
    void* arguments[] = {&x, &w, &y, &scale};
    config.gridDim = dim3((tokens + 15) / 16, (experts + 15) / 16, cubin.a);
    config.blockDim = 256;
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs].val.clusterDim.x = 1;
    attributes[config.numAttrs].val.clusterDim.y = 1;
    attributes[config.numAttrs++].val.clusterDim.z = cubin.a;
    return cudaLaunchKernelExC(&config, prepared, arguments);
  }
  FixedMatrix x = {p->x, hidden};
  OneSizeMatrix w = {p->w, experts, 0, hidden}, y = {p->y, experts, 0, experts};
  void* arguments[] = {&x, &w, &y};
  config.gridDim = experts;
  config.blockDim = cubin.c;
  return cudaLaunchKernelExC(&config, prepared, arguments);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const sluice_peer* const* sluice_peers(int* count) {
  static const sluice_peer peer = {"vllm-ll-bf16", PEER_VERSION, supports, scratch_bytes, prepare,
                                   enqueue,        nullptr,      nullptr,  nullptr};
  static const sluice_peer* const peers[] = {&peer};
  *count = 1;
  return peers;
}
