// Writes a checkpoint of one gpt-oss layer of any size by repeating a block of random bytes, so that it need
// not fit in memory.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "base/random.h"
#include "nn/moe/layer.h"
#include "nn/moe/names.h"
#include "weights/safetensors_writer.h"

namespace sluice::test {

inline void write_gpt_oss_layer(const std::string& path, const MoeConfig& c) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  const MoeNames& n = moe_names(MoeNaming::kGptOss);
  const int64_t h = c.hidden / 32, i = c.intermediate / 32;
  const std::vector<TensorToWrite> tensors = {
      {tensor_name(n.router, 0), StoredType::kBF16, {c.experts, c.hidden}},
      {tensor_name(n.router_bias, 0), StoredType::kBF16, {c.experts}},
      {tensor_name(n.up, 0), StoredType::kU8, {c.experts, 2 * c.intermediate, h, 16}},
      {tensor_name(n.up_scale, 0), StoredType::kU8, {c.experts, 2 * c.intermediate, h}},
      {tensor_name(n.up_bias, 0), StoredType::kBF16, {c.experts, 2 * c.intermediate}},
      {tensor_name(n.down, 0), StoredType::kU8, {c.experts, c.hidden, i, 16}},
      {tensor_name(n.down_scale, 0), StoredType::kU8, {c.experts, c.hidden, i}},
      {tensor_name(n.down_bias, 0), StoredType::kBF16, {c.experts, c.hidden}}};
  std::vector<std::byte> codes(kMiB), scales(kMiB);
  Random random(1);
  for (std::byte& b : codes)
    b = static_cast<std::byte>(random.bits() & 0x3F);  // read as bf16: below 2; read as codes: below 4
  for (std::byte& b : scales) b = static_cast<std::byte>(random.integer(119, 121));
  auto writer = SafetensorsWriter::create(path, tensors);
  ASSERT_TRUE(writer.ok()) << writer.status().message;
  for (const TensorToWrite& t : tensors) {
    const auto& scrap = t.name.ends_with("scales") ? scales : codes;
    for (int64_t left = stored_bytes(t.type, t.shape).value(); left > 0; left -= kMiB)
      ASSERT_TRUE(
          writer.value()
              ->write(std::span<const std::byte>(scrap).first(static_cast<size_t>(std::min(left, kMiB))))
              .ok());
  }
  ASSERT_TRUE(writer.value()->finish().ok());
}

}  // namespace sluice::test
