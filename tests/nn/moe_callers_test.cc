// Weights from a caller's tensors in device memory, and export and import of packed bytes, on a device whose
// memory the host cannot access.
#include "nn/far_tensors.h"

namespace sluice::test {
namespace {

MoeConfig for_device(MoeNaming naming) {
  MoeConfig config = small_config(naming);
  config.layout = WeightLayout::kFragments;
  return config;
}

TEST(MoeCallers, TensorsInDeviceMemoryArePackedAsThoseOfAFile) {
  for (const MoeNaming naming : kNamings) {
    FarDevice device;
    const RandomMoe moe(for_device(naming), 5), other(for_device(naming), 6);
    const Slice slice{.tp_rank = 1, .tp_size = 2, .ep_rank = 0, .ep_size = 2};
    const MoeLoadOptions options{.naming = naming, .slice = slice, .threads = 2};
    const Written file(moe.tensors(naming, 0)), update(other.tensors(naming, 0));
    const FarTensors far(device, moe.tensors(naming, 0)), far_update(device, other.tensors(naming, 0));
    const auto want = load_moe(device, *file.checkpoint, moe.config, options);
    const auto got = load_moe(device, *far.tensors, moe.config, options);
    ASSERT_TRUE(want.ok() && got.ok()) << word(naming) << want.status().message << got.status().message;
    EXPECT_EQ(packed(*got.value()), packed(*want.value())) << word(naming);
    EXPECT_TRUE(got.value()->verify().ok());
    for (const int64_t bytes : {1, 60000}) {  // one matrix per batch, and several matrices per batch
      MoeLoadOptions batched = options;
      batched.batch_bytes = bytes;
      const auto again = load_moe(device, *far.tensors, moe.config, batched);
      ASSERT_TRUE(again.ok()) << word(naming) << again.status().message;
      EXPECT_EQ(packed(*again.value()), packed(*want.value())) << word(naming) << bytes;
    }
    ASSERT_TRUE(want.value()->replace_expert(*update.checkpoint, 2).ok());
    const Status replaced = got.value()->replace_expert(*far_update.tensors, 2);
    ASSERT_TRUE(replaced.ok()) << replaced.message;
    const std::vector<std::byte> now = packed(*got.value());
    EXPECT_EQ(now, packed(*want.value())) << word(naming);
    // Exports packed bytes from the device and imports them again.
    const auto empty = LoadedMoe::allocate(device, moe.config, options);
    ASSERT_TRUE(empty.ok()) << empty.status().message;
    const Status read = empty.value()->read_packed(now);
    ASSERT_TRUE(read.ok()) << read.message;
    EXPECT_EQ(packed(*empty.value()), now);
    EXPECT_TRUE(empty.value()->verify().ok());
  }
}

TEST(MoeCallers, TensorsOfAnotherDeviceAreRefused) {
  FarDevice device;
  const auto cpu = cpu::open_device({.threads = 1}).value();
  const RandomMoe moe(small_config(MoeNaming::kGptOss), 5);
  const FarTensors far(device, moe.tensors(MoeNaming::kGptOss, 0));
  const auto loaded = load_moe(*cpu, *far.tensors, moe.config, {});
  EXPECT_EQ(loaded.status().code, Code::kInvalidArgument);
  EXPECT_NE(loaded.status().message.find("wanted memory of cpu or of the host, found cuda"),
            std::string::npos)
      << loaded.status().message;
}

TEST(MoeCallers, ANanScaleInDeviceMemoryIsNamed) {
  FarDevice device;
  RandomMoe moe(for_device(MoeNaming::kGptOss), 5);
  const FarTensors good(device, moe.tensors(MoeNaming::kGptOss, 0));
  moe.down[2].scales[7] = 255;
  const FarTensors bad(device, moe.tensors(MoeNaming::kGptOss, 0));
  const auto loaded = load_moe(device, *good.tensors, moe.config, {});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message;
  const std::vector<std::byte> before = packed(*loaded.value());
  const Status status = loaded.value()->replace_expert(*bad.tensors, 2);
  EXPECT_EQ(status.code, Code::kCorrupt);
  EXPECT_NE(status.message.find("down_proj_scales: expert 2, row 1, block 2"), std::string::npos)
      << status.message;
  EXPECT_EQ(packed(*loaded.value()), before);
}

// bf16 experts from a file, which the device packs, and from device memory.
TEST(MoeCallers, ANonFiniteWeightInDeviceMemoryIsNamed) {
  FarDevice device;
  RandomMoe moe(for_device(MoeNaming::kQwen3Moe), 5);
  moe.up[5].w[2 * (17 * 96 + 3)] = 0xc0, moe.up[5].w[2 * (17 * 96 + 3) + 1] = 0x7f;
  const Written file(moe.tensors(MoeNaming::kQwen3Moe, 0));
  const FarTensors far(device, moe.tensors(MoeNaming::kQwen3Moe, 0));
  for (const Checkpoint* from : {file.checkpoint.get(), far.tensors.get()}) {
    const Status status = load_moe(device, *from, moe.config, {.naming = MoeNaming::kQwen3Moe}).status();
    EXPECT_EQ(status.code, Code::kCorrupt);
    EXPECT_NE(
        status.message.find("experts.5.up_proj.weight: expert 5, row 17, column 3: wanted finite numbers, "
                            "found NaN"),
        std::string::npos)
        << status.message;
  }
}

}  // namespace
}  // namespace sluice::test
