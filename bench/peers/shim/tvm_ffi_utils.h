// The parts of FlashInfer's csrc/tvm_ffi_utils.h that its kernel files need to compile without TVM: checks, and the tensor views in the
// signatures of bindings. The adapters call the launchers and no bindings.
#pragma once
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <sstream>
#include <stdexcept>

namespace sluice_shim {

// Collects a message and throws it when the statement ends.
struct Thrower {
  std::ostringstream text;
  template <class T>
  Thrower& operator<<(const T& value) {
    text << value;
    return *this;
  }
  [[noreturn]] ~Thrower() noexcept(false) { throw std::runtime_error(text.str()); }
};

struct Device {
  int device_type = 2, device_id = 0;
};

struct Sizes {
  int64_t operator[](int) const { return 0; }
  int64_t size() const { return 0; }
};

struct TensorView {
  void* data_ptr() const { return nullptr; }
  Sizes shape() const { return {}; }
  Sizes sizes() const { return {}; }
  Sizes strides() const { return {}; }
  Device device() const { return {}; }
  int dtype() const { return 0; }
  int dim() const { return 0; }
  int ndim() const { return 0; }
  int64_t numel() const { return 0; }
};

// Gets cuTensorMapEncodeTiled from the loaded driver, so that the library links without libcuda.
inline CUresult encode_tiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                             const cuuint64_t* size, const cuuint64_t* stride, const cuuint32_t* box,
                             const cuuint32_t* element_stride, CUtensorMapInterleave interleave,
                             CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                             CUtensorMapFloatOOBfill fill) {
  using Function = decltype(&cuTensorMapEncodeTiled);
  static const Function function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
    return reinterpret_cast<Function>(found);
  }();
  if (function == nullptr) return CUDA_ERROR_NOT_FOUND;
  return function(map, type, rank, address, size, stride, box, element_stride, interleave, swizzle, promotion,
                  fill);
}

}  // namespace sluice_shim

namespace tvm::ffi {
using sluice_shim::TensorView;
template <class T>
struct Optional {
  bool has_value() const { return false; }
  T value() const { return {}; }
};
}  // namespace tvm::ffi
using tvm::ffi::Optional;
using tvm::ffi::TensorView;

#define cuTensorMapEncodeTiled sluice_shim::encode_tiled
#define TVM_FFI_ICHECK(condition) \
  if (condition) {                \
  } else                          \
    sluice_shim::Thrower()
#define TVM_FFI_LOG_AND_THROW(kind) sluice_shim::Thrower()
#define TVM_FFI_DLL_EXPORT_TYPED_FUNC(name, function)
#define TLLM_CHECK_WITH_INFO(condition, ...) \
  if (condition) {                           \
  } else                                     \
    sluice_shim::Thrower()
#define CHECK_CONTIGUOUS(tensor)

namespace tensorrt_llm::common {}

constexpr int kDLCUDA = 2;
constexpr int64_t float16_code = 1, bfloat16_code = 2, float32_code = 3, int32_code = 4;
constexpr int64_t encode_dlpack_dtype(int dtype) { return dtype; }
inline cudaStream_t get_stream(sluice_shim::Device) { return nullptr; }
