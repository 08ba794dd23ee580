#include "backends/cuda/tile/tensor_map.h"

#include <cuda_runtime_api.h>

#include <string>

namespace sluice::cuda::tile {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// From the driver that the runtime has loaded: no library of the driver is linked.
Encode encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  constexpr unsigned kSince = 12000;
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kSince, cudaEnableDefault,
                                       &found) != cudaSuccess ||
      found != cudaDriverEntryPointSuccess)
    return nullptr;
  return reinterpret_cast<Encode>(function);
}

}  // namespace

Status map_rows(CUtensorMap& map, const Tensor& tensor, int box_rows) {
  static const Encode encode = encoder();
  if (!encode)
    return {Code::kDevice, "cuda: wanted cuTensorMapEncodeTiled of the driver (12.0 or newer), found none"};
  constexpr cuuint32_t kBoxColumns = 64;
  const cuuint64_t shape[2] = {static_cast<cuuint64_t>(tensor.shape[1]),
                               static_cast<cuuint64_t>(tensor.shape[0])};
  const cuuint64_t row_bytes[1] = {static_cast<cuuint64_t>(bytes_of(tensor.dtype, tensor.stride[0]))};
  const cuuint32_t box[2] = {kBoxColumns, static_cast<cuuint32_t>(box_rows)}, step[2] = {1, 1};
  const CUresult result = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, tensor.data, shape, row_bytes,
                                 box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return {};
  return {Code::kDevice, "cuda: map of " + text(tensor) + " with boxes of " + std::to_string(box_rows) +
                             " rows: driver error " + std::to_string(static_cast<int>(result))};
}

}  // namespace sluice::cuda::tile
