// cuBLASLt: the fastest of up to 32 algorithms that its heuristics offer, timed on the problem itself with cold weights.
// cublaslt_library.h says where the library is found.
//
// f32 weights are multiplied in f32 arithmetic, as in engines, which convert x to f32 first. Here prepare() converts x, so the conversion is
// not timed, and later changes of x have no effect.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "cublaslt_library.h"
#include "peer.h"

namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr int kAlgorithms = 32;
constexpr size_t kColdBytes = size_t{128}
                              << 20;  // bytes of rotating weights while timing: twice the L2 of Hopper
// All algorithms are timed briefly, then the fastest ones again with every copy of the weights.
constexpr int kFewestLaunches = 32, kBriefLaunches = 24, kBest = 4;

struct Named : CublasLt {
  char name[48] = "libcublasLt.so.13 not found";  // includes its version
  Named() {
    if (open) std::snprintf(name, sizeof name, "%s, best of %d", version, kAlgorithms);
  }
};

Named& library() {
  static Named it;
  return it;
}

struct Prepared {
  cublasLtMatmulDesc_t desc;
  cublasLtMatrixLayout_t w, x, y;
  cublasLtMatmulAlgo_t algorithm;
};

const char* supports(const sluice_peer_router* p) {
  if (!library().open) return "libcublasLt.so.13 is not on the loader's path";
  if (p->dependent) return "does not support dependent launches";
  if (p->bias != nullptr && p->y_is_f32) return "adds a bf16 bias to bf16 logits only";
  if (p->w_is_f32 && !p->y_is_f32) return "writes only f32 logits if the weights are f32";
  if (p->hidden % 8 != 0 || p->experts % 8 != 0)
    return "needs hidden and experts in multiples of 8 (rows of 16 bytes)";
  return nullptr;
}

// The workspace, then x in f32 if w is f32.
size_t scratch_bytes(const sluice_peer_router* p) {
  return kWorkspaceBytes + (p->w_is_f32 ? static_cast<size_t>(p->tokens) * p->hidden * sizeof(float) : 0);
}
const void* x_of(const sluice_peer_router* p, const void* scratch) {
  return p->w_is_f32 ? static_cast<const char*>(scratch) + kWorkspaceBytes : p->x;
}
bool convert_x(const sluice_peer_router* p, void* scratch) {
  const size_t count = static_cast<size_t>(p->tokens) * p->hidden;
  std::vector<uint16_t> from(count);
  std::vector<uint32_t> to(count);
  if (cudaMemcpy(from.data(), p->x, count * sizeof from[0], cudaMemcpyDeviceToHost) != cudaSuccess)
    return false;
  for (size_t i = 0; i < count; ++i) to[i] = static_cast<uint32_t>(from[i]) << 16;
  return cudaMemcpy(static_cast<char*>(scratch) + kWorkspaceBytes, to.data(), count * sizeof to[0],
                    cudaMemcpyHostToDevice) == cudaSuccess;
}

cublasStatus_t multiply(const Prepared& a, const cublasLtMatmulAlgo_t& algorithm, const sluice_peer_router* p,
                        const void* w, void* scratch, void* stream) {
  const float one = 1, share = p->residual != nullptr ? 1 : 0;
  const void* c = p->residual != nullptr ? p->residual : p->y;
  if (p->bias != nullptr)  // the descriptor holds the address, and the caller may change it from call to call
    library().desc_set(a.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias, sizeof p->bias);
  return library().matmul(library().handle, a.desc, &one, w, a.w, x_of(p, scratch), a.x, &share, c, a.y, p->y,
                          a.y, &algorithm, scratch, kWorkspaceBytes, static_cast<cudaStream_t>(stream));
}

// Microseconds per launch, or a negative number if the algorithm refuses.
float time_algorithm(const Prepared& a, const cublasLtMatmulAlgo_t& algorithm, const sluice_peer_router* p,
                     const char* copies, size_t weight_bytes, size_t copy_count, int launches, void* scratch,
                     cudaStream_t stream) {
  return recorded_us(stream, launches, [&](int i) {
    return multiply(a, algorithm, p, copies + i % copy_count * weight_bytes, scratch, stream) ==
           CUBLAS_STATUS_SUCCESS;
  });
}

// Column-major: y^T[experts, tokens] = w[hidden, experts]^T x[hidden, tokens].
bool describe(const sluice_peer_router* p, Prepared& a) {
  CublasLt& lt = library();
  const cublasOperation_t transpose = CUBLAS_OP_T;
  if (lt.desc_create(&a.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) != CUBLAS_STATUS_SUCCESS) return false;
  lt.desc_set(a.desc, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose);
  if (p->bias != nullptr) {
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    lt.desc_set(a.desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
  }
  const auto hidden = static_cast<uint64_t>(p->hidden), experts = static_cast<uint64_t>(p->experts);
  const auto tokens = static_cast<uint64_t>(p->tokens);
  const cudaDataType_t type = p->w_is_f32 ? CUDA_R_32F : CUDA_R_16BF;
  return lt.layout_create(&a.w, type, hidden, experts, p->hidden) == CUBLAS_STATUS_SUCCESS &&
         lt.layout_create(&a.x, type, hidden, tokens, p->hidden) == CUBLAS_STATUS_SUCCESS &&
         lt.layout_create(&a.y, p->y_is_f32 ? CUDA_R_32F : CUDA_R_16BF, experts, tokens, p->experts) ==
             CUBLAS_STATUS_SUCCESS;
}

// The fastest algorithm for p, or null. The descriptors live as long as the library.
void* prepare(const sluice_peer_router* p, void* scratch) {
  CublasLt& lt = library();
  if (!lt.open || (lt.handle == nullptr && lt.create(&lt.handle) != CUBLAS_STATUS_SUCCESS)) return nullptr;
  if (p->w_is_f32 && !convert_x(p, scratch)) return nullptr;
  Prepared a{};
  cublasLtMatmulPreference_t preference;
  if (!describe(p, a) || lt.preference_create(&preference) != CUBLAS_STATUS_SUCCESS) return nullptr;
  lt.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspaceBytes,
                    sizeof kWorkspaceBytes);
  cublasLtMatmulHeuristicResult_t found[kAlgorithms];
  int count = 0;
  lt.heuristic(lt.handle, a.desc, a.w, a.x, a.y, a.y, preference, kAlgorithms, found, &count);
  lt.preference_destroy(preference);

  const size_t weight_bytes = static_cast<size_t>(p->experts) * p->hidden * (p->w_is_f32 ? 4 : 2);
  const size_t copy_count = kColdBytes / weight_bytes + 1;
  char* copies = nullptr;
  cudaStream_t stream;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return nullptr;
  if (cudaMalloc(&copies, copy_count * weight_bytes) != cudaSuccess) return nullptr;
  for (size_t i = 0; i < copy_count; ++i)
    cudaMemcpyAsync(copies + i * weight_bytes, p->w, weight_bytes, cudaMemcpyDeviceToDevice, stream);
  const auto time = [&](int i, int launches) {
    return time_algorithm(a, found[i].algo, p, copies, weight_bytes, copy_count, launches, scratch, stream);
  };
  std::vector<std::pair<float, int>> brief;
  for (int i = 0; i < count; ++i) {
    if (found[i].state != CUBLAS_STATUS_SUCCESS) continue;
    const float us = time(i, std::min<int>(kBriefLaunches, copy_count + 3));
    if (us >= 0) brief.push_back({us, i});
  }
  std::sort(brief.begin(), brief.end());
  if (brief.size() > kBest) brief.resize(kBest);
  float best = -1;
  for (const auto& [_, i] : brief) {
    const float us =
        time(i, std::max<int>(kFewestLaunches, copy_count));  // every copy once, so that no copy is warm
    if (us < 0 || (best >= 0 && us >= best)) continue;
    best = us;
    a.algorithm = found[i].algo;
  }
  cudaFree(copies);
  cudaStreamDestroy(stream);
  cudaGetLastError();  // a refused algorithm leaves an error
  return best < 0 ? nullptr : new Prepared(a);
}

int enqueue(const sluice_peer_router* p, void* scratch, void* prepared, void* stream) {
  if (prepared == nullptr) return 1;
  const Prepared& a = *static_cast<Prepared*>(prepared);
  return multiply(a, a.algorithm, p, p->w, scratch, stream);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const sluice_peer* const* sluice_peers(int* count) {
  static const sluice_peer peer = {"cublaslt", library().name, supports, scratch_bytes, prepare,
                                   enqueue,    nullptr,        nullptr,  nullptr};
  static const sluice_peer* const peers[] = {&peer};
  *count = 1;
  return peers;
}
