// Arbitrary bytes as model.safetensors.index.json: rejected, or every shard is a plain file name in the same
// folder.
#include <cstddef>
#include <cstdint>

#include "weights/checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto json = sluice::parse_json(text, "fuzz.json");
  if (!json.ok()) return 0;
  const auto map = sluice::parse_weight_map(json.value(), "fuzz.json");
  if (!map.ok()) return 0;
  for (const auto& [tensor, shard] : map.value())
    if (shard.empty() || shard.find('/') != std::string::npos || shard.starts_with(".")) __builtin_trap();
  return 0;
}
