// Arbitrary bytes as a safetensors file: rejected, or every tensor lies inside the file.
#include <cstddef>
#include <cstdint>

#include "weights/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  const auto header = sluice::parse_safetensors_header(file, static_cast<int64_t>(size), "fuzz.safetensors");
  if (!header.ok()) {
    if (header.status().message.find("fuzz.safetensors") == std::string::npos) __builtin_trap();
    return 0;
  }
  volatile uint8_t sink = 0;
  for (const auto& tensor : header.value().tensors) {
    if (tensor.begin < 8 || tensor.bytes < 0 || tensor.begin + tensor.bytes > static_cast<int64_t>(size))
      __builtin_trap();
    for (int64_t i = 0; i < tensor.bytes; ++i) sink = data[tensor.begin + i];
  }
  (void)sink;
  return 0;
}
