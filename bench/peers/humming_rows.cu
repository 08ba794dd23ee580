// vLLM's kernels around Humming's GEMMs, for humming_layer.py, which loads this library with ctypes: rows sorted by expert in padded
// blocks (moe_align_block_size) or without padding (moe_prepare_scatter), and the sum of a token's rows (moe_unpermute). Each function
// returns 0, or an error code of CUDA or of the kernel.
#include <cuda_bf16.h>

#include <cub/cub.cuh>
#include <cuda/std/functional>

#include "torch_shim.h"
// vLLM's files, which need the includes above.
#include "moe/moe_align_sum_kernels.cu"
#include "moe/permute_unpermute_kernels/moe_permute_unpermute_kernel.cu"

#define SLUICE_EXPORT extern "C" __attribute__((visibility("default")))

// Sorts the pairs of ids[tokens, top_k] into blocks of `block` rows, each of one expert. Writes rows[most], the expert of each block, and
// the padded row count. scratch has experts + 1025 ints.
SLUICE_EXPORT int humming_blocks(const int* ids, int* rows, int* of_blocks, int* padded, int* scratch,
                                 int64_t tokens, int64_t top_k, int64_t experts, int64_t block, int64_t most,
                                 void* stream) {
  using torch::headeronly::ScalarType;
  using torch::stable::Tensor;
  sluice_shim::stream = static_cast<cudaStream_t>(stream);
  sluice_shim::scratch = reinterpret_cast<char*>(scratch);
  try {
    moe_align_block_size(Tensor(ids, {tokens, top_k}, ScalarType::Int), experts, block,
                         Tensor(rows, {most}, ScalarType::Int),
                         Tensor(of_blocks, {(most + block - 1) / block}, ScalarType::Int),
                         Tensor(padded, {1}, ScalarType::Int), std::nullopt, std::nullopt);
  } catch (const std::exception&) {
    return 1;
  }
  return cudaPeekAtLastError();
}

SLUICE_EXPORT int64_t humming_sort_bytes(int64_t pairs, int64_t experts) {
  return static_cast<int64_t>(
      CubKeyValueSorter::getWorkspaceSize(static_cast<size_t>(pairs), static_cast<int>(experts)));
}

// Writes offsets[experts + 1] and the row of every pair of ids[tokens, top_k]. `counted` holds 0, 1, 2 ...; `keys` has 3 * tokens * top_k
// ints, `sort` has humming_sort_bytes bytes.
SLUICE_EXPORT int humming_scatter(const int* ids, const int* counted, int* keys, int64_t* offsets, int* rows,
                                  void* sort, int64_t tokens, int64_t top_k, int64_t experts, void* stream_) {
  const auto stream = static_cast<cudaStream_t>(stream_);
  const int64_t pairs = tokens * top_k;
  const int n = static_cast<int>(experts);
  cudaMemcpyAsync(keys, ids, static_cast<size_t>(pairs) * 4, cudaMemcpyDeviceToDevice, stream);
  try {
    CubKeyValueSorter sorter;
    preprocessTopkIdLauncher(keys, static_cast<int>(pairs), nullptr, n, stream);
    sortAndScanExpert(keys, counted, keys + pairs, keys + 2 * pairs, offsets, static_cast<int>(tokens), n, n,
                      static_cast<int>(top_k), sorter, sort, stream, rows);
  } catch (const std::exception&) {
    return 1;
  }
  return cudaPeekAtLastError();
}

// y[tokens, hidden] = sum over k of weights[t, k] * g[rows[t, k]].
SLUICE_EXPORT int humming_sum(const void* g, void* y, const float* weights, const int* rows,
                              const int64_t* offsets, int64_t tokens, int64_t hidden, int64_t top_k,
                              int64_t experts, void* stream) {
  try {
    finalizeMoeRoutingKernelLauncher(static_cast<const __nv_bfloat16*>(g), static_cast<__nv_bfloat16*>(y),
                                     weights, rows, tokens, hidden, top_k, offsets + experts,
                                     static_cast<cudaStream_t>(stream));
  } catch (const std::exception&) {
    return 1;
  }
  return cudaPeekAtLastError();
}
