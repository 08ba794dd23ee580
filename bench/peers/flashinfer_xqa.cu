// XQA, NVIDIA's decode attention in FlashInfer, as trtllm_batch_decode_with_kv_cache runs it on Hopper: one row per sequence,
// split into sub-sequences by its own rule, with dependent launches. flashinfer_xqa_kernel.cu has the kernels.
#include "tvm_ffi_utils.h"
// The shim comes first, because it redirects the driver's functions, so that the library links without libcuda.
#define cuGetErrorName(error, text) (*(text) = "a driver error", CUDA_SUCCESS)
#include "tensorMap.cpp"

#include "attention_sinks.h"
#include "flashinfer_xqa.h"

namespace {

// Bytes of the workspace that FlashInfer reserves for semaphores. The partial results of splits are small, because sequences are split
// only if there are fewer CTAs than SMs.
constexpr size_t kSinksBytes = 4096, kSemaphoreBytes = size_t{8} << 20, kSplitBytes = size_t{24} << 20;

const char* supports(const sluice_peer_attention* p) {
  if (p->head_dim != 64 || p->heads != 8 * p->kv_heads) return "needs 8 heads of 64 elements per kv head";
  if (p->page_size != 16) return "needs pages of 16 tokens";
  if (p->heads > static_cast<int64_t>(kSinksBytes / sizeof(float))) return "needs at most 1024 heads";
  for (int64_t s = 0; s < p->sequences; ++s) {
    if (p->host_q_begin[s] != s || p->host_q_begin[s + 1] != s + 1) return "needs one row per sequence";
    if (p->host_kv_len[s] < 1) return "needs a key in every sequence";
  }
  if (p->sequences * p->kv_heads > 65535) return "needs sequences * kv heads <= 65535";
  return nullptr;
}

size_t scratch_bytes(const sluice_peer_attention*) { return kSinksBytes + kSemaphoreBytes + kSplitBytes; }

void* prepare(const sluice_peer_attention* p, void* scratch) {
  auto* at = static_cast<char*>(scratch);
  XqaProblem problem;
  int device = 0, multiprocessors = 0;
  if (cudaDeviceSynchronize() != cudaSuccess || cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess ||
      cudaMemset(at, 0, kSinksBytes + kSemaphoreBytes) != cudaSuccess)
    return nullptr;
  problem.multiprocessors = static_cast<uint32_t>(multiprocessors);
  problem.semaphores = reinterpret_cast<uint32_t*>(at + kSinksBytes);
  problem.scratch = at + kSinksBytes + kSemaphoreBytes;
  if (p->sinks != nullptr) {
    problem.sinks = reinterpret_cast<float*>(at);
    if (!copy_sinks(p, at)) return nullptr;
  }
  if (cudaDeviceSynchronize() != cudaSuccess) return nullptr;
  return new XqaProblem(problem);
}

int enqueue(const sluice_peer_attention* p, void*, void* prepared, void* stream) {
  if (prepared == nullptr) return 1;
  XqaRun* const run = p->cache_is_e4m3 ? (p->window > 0 ? xqa_e4m3_window : xqa_e4m3)
                                       : (p->window > 0 ? xqa_bf16_window : xqa_bf16);
  try {
    run(p, *static_cast<const XqaProblem*>(prepared), static_cast<cudaStream_t>(stream));
  } catch (const std::exception&) {
    return 2;
  }
  return cudaGetLastError() == cudaSuccess ? 0 : 3;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const sluice_attention_peer* const* sluice_attention_peers(
    int* count) {
  static const sluice_attention_peer peer = {"flashinfer-xqa", PEER_VERSION, supports,
                                             scratch_bytes,    prepare,      enqueue};
  static const sluice_attention_peer* const peers[] = {&peer};
  *count = 1;
  return peers;
}
