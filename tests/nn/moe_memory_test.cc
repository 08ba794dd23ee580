#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "harness/devices.h"
#include "harness/moe_files.h"
#include "nn/moe_canary.h"

namespace sluice::test {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// Memory of this process that no file backs.
int64_t anonymous_bytes() {
  std::ifstream file("/proc/self/status");
  std::string key, rest;
  for (int64_t kib = 0; file >> key; std::getline(file, rest))
    if (key == "RssAnon:" && file >> kib) return kib * 1024;
  return -1;
}

// The tensors of one gpt-oss layer from a repeated scrap of random bytes, without holding any of them.
void write_layer(const std::string& path, const MoeConfig& c) {
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
    b = static_cast<std::byte>(random.bits() & 0x3F);  // as bf16: below 2, as codes: anything below 4
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

TEST(MoeMemory, LoadingNeedsTheWeightsAndAtMost64MiBMore) {
  MoeConfig config = known_moe("gpt-oss-20b").value();
  config.experts = 16;
  TemporaryDirectory at;
  write_layer(at.file("model.safetensors"), config);
  const auto checkpoint = Checkpoint::open(at.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message;
  ASSERT_GT(checkpoint.value()->bytes(), 200 * kMiB);
  const auto device = cpu::open_device({.threads = 2}).value();
  const int64_t before = anonymous_bytes();
  ASSERT_GT(before, 0);
  int64_t most = 0;
  const auto loaded = load_moe(
      *device, *checkpoint.value(), config,
      {.threads = 2, .progress = [&](int64_t, int64_t) { most = std::max(most, anonymous_bytes()); }});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message;
  most = std::max(most, anonymous_bytes());
  EXPECT_GT(loaded.value()->bytes(), 200 * kMiB);
  EXPECT_LE(most - before, loaded.value()->bytes() + 64 * kMiB);
  const Status status = canary(*device, *loaded.value(), *checkpoint.value());
  EXPECT_TRUE(status.ok()) << status.message;
}

}  // namespace
}  // namespace sluice::test
