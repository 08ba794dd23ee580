#include "backends/cuda/tile/tensor_map.h"

#include <cuda_runtime_api.h>

#include <string>

namespace sluice::cuda::tile {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// The driver's encoder, found through the runtime, so that no driver library is linked. Null if the driver has no tensor maps.
Encode find_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  constexpr unsigned kSince = 12000;
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kSince, cudaEnableDefault,
                                       &found) != cudaSuccess ||
      found != cudaDriverEntryPointSuccess)
    return nullptr;
  return reinterpret_cast<Encode>(function);
}

Encode encoder() {
  static const Encode found = find_encoder();
  return found;
}
Status needs_encoder() {
  if (encoder()) return {};
  return {Code::kDevice, "cuda: wanted cuTensorMapEncodeTiled of the driver (12.0 or newer), found none"};
}

}  // namespace

Status map_rows(CUtensorMap& map, const Tensor& tensor, int box_rows) {
  SLUICE_TRY(needs_encoder());
  constexpr int64_t kBoxBytes = 128;
  const bool f32 = tensor.dtype == DType::kF32;
  const cuuint64_t shape[2] = {static_cast<cuuint64_t>(tensor.shape[1]),
                               static_cast<cuuint64_t>(tensor.shape[0])};
  const cuuint64_t row_bytes[1] = {static_cast<cuuint64_t>(bytes_of(tensor.dtype, tensor.stride[0]))};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(kBoxBytes / bytes_of(tensor.dtype, 1)),
                             static_cast<cuuint32_t>(box_rows)},
                   step[2] = {1, 1};
  const CUresult result = encoder()(
      &map, f32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, tensor.data, shape,
      row_bytes, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return {};
  return {Code::kDevice, "cuda: map of " + text(tensor) + " with boxes of " + std::to_string(box_rows) +
                             " rows: driver error " + std::to_string(static_cast<int>(result))};
}

namespace {

constexpr cuuint32_t kColumns = 64;  // bf16 columns, 128 bytes

cuuint64_t size_of(int64_t n) { return static_cast<cuuint64_t>(n); }

// One of the last four dimensions of a 5-D map of bf16 rows: size and stride in rows, and size in a box.
struct RowsOf {
  int64_t size, stride;
  cuuint32_t box;
};
Status map_rows_of_heads(CUtensorMap& map, const Tensor& tensor, int64_t head_dim, const RowsOf (&rows)[4]) {
  SLUICE_TRY(needs_encoder());
  const int64_t row_bytes = bytes_of(tensor.dtype, tensor.stride[0]);
  cuuint64_t shape[5] = {size_of(tensor.shape[1])}, strides[4];
  cuuint32_t box[5] = {kColumns}, step[5] = {1, 1, 1, 1, 1};
  for (int i = 0; i < 4; ++i)
    shape[i + 1] = size_of(rows[i].size), strides[i] = size_of(rows[i].stride * row_bytes),
              box[i + 1] = rows[i].box;
  const CUresult result = encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 5, tensor.data, shape, strides,
                                    box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                    CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return {};
  return {Code::kDevice, "cuda: map of " + text(tensor) + " by halves of heads of " +
                             std::to_string(head_dim) + ": driver error " +
                             std::to_string(static_cast<int>(result))};
}

}  // namespace

Status map_halves(CUtensorMap& map, const Tensor& tensor, int64_t head_dim, int pairs) {
  const int64_t half = head_dim / 2;
  const auto count = static_cast<cuuint32_t>(pairs);
  return map_rows_of_heads(
      map, tensor, head_dim,
      {{pairs, 1, count}, {2, half, 2}, {half / pairs, pairs, 1}, {tensor.shape[0] / head_dim, head_dim, 1}});
}

Status map_pairs(CUtensorMap& map, const Tensor& tensor, int64_t head_dim) {
  return map_rows_of_heads(map, tensor, head_dim,
                           {{2, 1, 2}, {2, 8, 2}, {2, head_dim / 2, 2}, {tensor.shape[0] / 2, 2, 4}});
}

Status map_slabs(CUtensorMap& codes, CUtensorMap& scales, const Tensor& w, const Tensor& w_scale,
                 const FragmentShape& shape, int64_t experts, int box_blocks) {
  SLUICE_TRY(needs_encoder());
  constexpr int64_t kWord = 4, kSlabs = 4;
  // Dimensions, innermost first: words of a block, k blocks, row blocks, experts.
  const auto make = [&](CUtensorMap& map, const Tensor& tensor, int64_t block_bytes, int64_t expert_bytes) {
    const auto unsigned_of = [](int64_t n) { return static_cast<cuuint64_t>(n); };
    const cuuint64_t sizes[4] = {unsigned_of(block_bytes / kWord), unsigned_of(shape.k_blocks),
                                 unsigned_of(shape.row_blocks), unsigned_of(experts)};
    const cuuint64_t strides[3] = {unsigned_of(block_bytes), unsigned_of(shape.k_blocks * block_bytes),
                                   unsigned_of(expert_bytes)};
    const cuuint32_t box[4] = {static_cast<cuuint32_t>(block_bytes / kSlabs / kWord),
                               static_cast<cuuint32_t>(box_blocks), 1, 1},
                     step[4] = {1, 1, 1, 1};
    const CUresult result = encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 4, tensor.data, sizes, strides,
                                      box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result == CUDA_SUCCESS) return Status{};
    return Status{Code::kDevice, "cuda: map of " + text(tensor) + " with boxes of " +
                                     std::to_string(box_blocks) + " k blocks of a slab: driver error " +
                                     std::to_string(static_cast<int>(result))};
  };
  SLUICE_TRY(make(codes, w, kFragmentCodeBytes, shape.code_bytes({DType::kE2M1})));
  return make(scales, w_scale, kFragmentScaleBytes, shape.scale_bytes({DType::kE2M1}));
}

}  // namespace sluice::cuda::tile
