#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "harness/devices.h"
#include "harness/moe_files.h"
#include "harness/moe_layer_file.h"
#include "nn/moe/canary.h"

namespace sluice::test {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// This process's resident memory without memory-mapped files.
int64_t anonymous_bytes() {
  std::ifstream file("/proc/self/status");
  std::string key, rest;
  for (int64_t kib = 0; file >> key; std::getline(file, rest))
    if (key == "RssAnon:" && file >> kib) return kib * 1024;
  return -1;
}

TEST(MoeMemory, LoadingNeedsTheWeightsAndAtMost64MiBMore) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's shadow memory counts as resident";
#endif
  MoeConfig config = known_moe("gpt-oss-20b").value();
  config.experts = 16;
  TemporaryDirectory at;
  write_gpt_oss_layer(at.file("model.safetensors"), config);
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
