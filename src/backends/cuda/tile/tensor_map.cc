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

struct Box {
  cuuint32_t dimensions;
  cuuint64_t shape[4], stride_bytes[3];  // strides from the second dimension on
  cuuint32_t size[4];
};

Status encode_map(CUtensorMap& map, const Tensor& tensor, int box_rows, const Box& box) {
  static const Encode encode = encoder();
  if (!encode)
    return {Code::kDevice, "cuda: wanted cuTensorMapEncodeTiled of the driver (12.0 or newer), found none"};
  const cuuint32_t step[4] = {1, 1, 1, 1};
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, box.dimensions, tensor.data, box.shape, box.stride_bytes,
             box.size, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return {};
  return {Code::kDevice, "cuda: map of " + text(tensor) + " with boxes of " + std::to_string(box_rows) +
                             " rows: driver error " + std::to_string(static_cast<int>(result))};
}

constexpr cuuint32_t kBoxColumns = 64, kGroupRows = kMapGroupRows;

cuuint64_t length(const Tensor& tensor, int dimension) {
  return static_cast<cuuint64_t>(tensor.shape[dimension]);
}
cuuint64_t row_bytes(const Tensor& tensor) {
  return static_cast<cuuint64_t>(bytes_of(tensor.dtype, tensor.stride[0]));
}

}  // namespace

Status map_rows(CUtensorMap& map, const Tensor& tensor, int box_rows) {
  const Box box{.dimensions = 2,
                .shape = {length(tensor, 1), length(tensor, 0)},
                .stride_bytes = {row_bytes(tensor)},
                .size = {kBoxColumns, static_cast<cuuint32_t>(box_rows)}};
  return encode_map(map, tensor, box_rows, box);
}

Status map_row_runs(CUtensorMap& map, const Tensor& tensor, int box_rows, int run) {
  const auto block_bytes = static_cast<cuuint64_t>(bytes_of(tensor.dtype, kBoxColumns));
  const Box box{
      .dimensions = 4,
      .shape = {kBoxColumns, kGroupRows, length(tensor, 1) / kBoxColumns, length(tensor, 0) / kGroupRows},
      .stride_bytes = {row_bytes(tensor), block_bytes, kGroupRows * row_bytes(tensor)},
      .size = {kBoxColumns, kGroupRows, static_cast<cuuint32_t>(run),
               static_cast<cuuint32_t>(box_rows) / kGroupRows}};
  return encode_map(map, tensor, box_rows, box);
}

}  // namespace sluice::cuda::tile
