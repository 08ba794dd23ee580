#include "backends/cuda/launch.h"

#include <cuda_runtime.h>

#include "backends/cuda/gpu_scope.h"

namespace sluice::cuda {

Status check(cudaError_t error, std::string_view doing) {
  if (error == cudaSuccess) return {};
  const Code code = error == cudaErrorMemoryAllocation ? Code::kOutOfMemory : Code::kDevice;
  return {code, "cuda: " + std::string(doing) + ": " + cudaGetErrorName(error) + " (" +
                    cudaGetErrorString(error) + ")"};
}

Status launch_kernel(std::string_view name, const void* kernel, const Launch& how, Stream stream,
                     void** arguments) {
  Queue& queue = queue_of(stream);
  // The default limit is 48 KiB, static shared memory included.
  constexpr size_t kWithoutAsking = size_t{32} << 10;
  constexpr unsigned kPortableCluster = 8;
  const unsigned blocks = how.cluster.x * how.cluster.y * how.cluster.z;
  const OnGpuScope on(queue.device);
  cudaError_t error = on.error();
  if (error == cudaSuccess && how.shared_bytes > kWithoutAsking)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(how.shared_bytes));
  if (error == cudaSuccess && blocks > kPortableCluster)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  if (error == cudaSuccess) {
    cudaLaunchAttribute attributes[3];
    cudaLaunchConfig_t config{};
    config.gridDim = how.grid;
    config.blockDim = how.block;
    config.dynamicSmemBytes = how.shared_bytes;
    config.stream = queue.stream;
    config.attrs = attributes;
    if (queue.dependent && how.dependent) {
      cudaLaunchAttribute& a = attributes[config.numAttrs++];
      a.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      a.val.programmaticStreamSerializationAllowed = 1;
    }
    if (blocks > 1) {
      cudaLaunchAttribute& a = attributes[config.numAttrs++];
      a.id = cudaLaunchAttributeClusterDimension;
      a.val.clusterDim.x = how.cluster.x;
      a.val.clusterDim.y = how.cluster.y;
      a.val.clusterDim.z = how.cluster.z;
    }
    if (how.cooperative) {
      cudaLaunchAttribute& a = attributes[config.numAttrs++];
      a.id = cudaLaunchAttributeCooperative;
      a.val.cooperative = 1;
    }
    error = cudaLaunchKernelExC(&config, kernel, arguments);
  }
  if (error == cudaSuccess) {
    queue.note(name);
    return {};
  }
  (void)cudaGetLastError();  // clears the error, which is reported here
  return check(error, "launch of " + std::string(name) + " (grid " + std::to_string(how.grid.x) + "x" +
                          std::to_string(how.grid.y) + "x" + std::to_string(how.grid.z) + ", block " +
                          std::to_string(how.block.x) + ", shared memory " +
                          std::to_string(how.shared_bytes) + ", cluster " + std::to_string(blocks) + ")");
}

}  // namespace sluice::cuda
