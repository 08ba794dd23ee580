// Exports one of XQA's kernels as the function XQA_RUN. XQA takes its types and sizes as macros: CACHE_ELEM_ENUM (0: bf16, 2: e4m3),
// SLIDING_WINDOW, HEAD_ELEMS and so on; bench/peers/build defines them. XQA's files are found by -I.
#include "tvm_ffi_utils.h"
// The shim comes first, because it redirects the driver's functions, so that the library links without libcuda.
#define cuGetErrorName(error, text) (*(text) = "a driver error", CUDA_SUCCESS)
// The functions of all kernels have the same names, but are linked into one library.
#define XQA_JOIN_NOW(a, b) a##b
#define XQA_JOIN(a, b) XQA_JOIN_NOW(a, b)
#define launchMHA XQA_JOIN(XQA_RUN, _mha)
#define launchMHAFlashInfer XQA_JOIN(XQA_RUN, _launch)
#define launchHopperF8MHA XQA_JOIN(XQA_RUN, _mha)
#define launchHopperF8MHAFlashInfer XQA_JOIN(XQA_RUN, _launch)
// As in FlashInfer on Hopper: the wgmma kernel for 8-bit caches, the kernel without wgmma for other caches.
#if CACHE_ELEM_ENUM == 0
#include "mha.cu"
#else
#include "mha_sm90.cu"
#endif

#include <cmath>

#include "flashinfer_xqa.h"

void XQA_RUN(const sluice_peer_attention* p, const XqaProblem& problem, cudaStream_t stream) {
  const auto cache = [](const void* data) { return static_cast<GMemCacheHead*>(const_cast<void*>(data)); };
  const auto token_stride = static_cast<uint64_t>(p->head_dim), head_stride = token_stride * p->page_size;
  // XQA multiplies by 1 / sqrt(head_dim) itself.
  const auto scale = static_cast<float>(p->scale * std::sqrt(static_cast<double>(p->head_dim)));
  launchMHAFlashInfer(
      problem.multiprocessors, static_cast<uint32_t>(p->kv_heads), static_cast<uint32_t>(p->window), scale,
      nullptr, static_cast<OutputHead*>(p->y), static_cast<const InputHead*>(p->q), problem.sinks,
      cache(p->k_cache), cache(p->v_cache), p->page_table,
      static_cast<uint32_t>(p->pages_per_seq * p->page_size), reinterpret_cast<const uint32_t*>(p->kv_len),
      static_cast<uint32_t>(p->sequences), 1.0f, nullptr, problem.semaphores, problem.scratch,
      p->dependent != 0, head_stride * static_cast<uint64_t>(p->kv_heads), token_stride, head_stride, stream);
}
