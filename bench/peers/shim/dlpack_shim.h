// Declarations of the DLPack and TVM names that SGLang's kernel headers use in host code. No adapter calls that code.
#pragma once
#include <cstdint>
enum DLDeviceType { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3, kDLROCM = 10 };
enum DLDataTypeCode { kDLInt = 0, kDLUInt = 1, kDLFloat = 2, kDLBfloat = 4 };
struct DLDevice {
  DLDeviceType device_type;
  int32_t device_id;
};
struct DLDataType {
  uint8_t code, bits;
  uint16_t lanes;
};
inline void* TVMFFIEnvGetStream(int32_t, int32_t) { return nullptr; }
