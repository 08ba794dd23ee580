#include <gtest/gtest.h>

#include <map>

#include "backends/cpu/device.h"
#include "harness/moe_files.h"
#include "models/family.h"
#include "nn/moe/load.h"

namespace sluice::test {

// The tensor list describes a checkpoint: a file with exactly these tensors loads.
TEST(MoeTensors, DescribeACheckpointThatLoads) {
  const auto device = cpu::open_device({.threads = 1}).value();
  for (MoeNaming naming : kNamings) {
    const MoeConfig config = small_config(naming);
    const RandomMoe moe(config, 3);
    std::map<std::string, std::vector<int64_t>> stored;
    for (const StoredTensor& t : moe.tensors(naming, 2)) stored[t.what.name] = t.what.shape;
    std::vector<StoredTensor> written;
    for (const TensorSpec& spec : moe_tensors(config, naming, 2)) {
      EXPECT_EQ(spec.layer, 2);
      const bool scale = spec.weight.starts_with("shared") &&
                         spec.weight.ends_with("_scale");  // the shared expert may be FP8
      EXPECT_EQ(stored.count(spec.name), scale ? 0u : 1u) << spec.name;
      // In checkpoints with one tensor per expert, codes may be counted as bytes or as elements.
      const bool codes =
          naming == MoeNaming::kDeepSeekV4 && (spec.weight == "experts.up" || spec.weight == "experts.down");
      if (!scale && !codes) {
        EXPECT_EQ(stored[spec.name], spec.shape) << spec.name;
      }
      StoredTensor t{{spec.name, spec.type, spec.shape}, {}};
      t.bytes.resize(static_cast<size_t>(*stored_bytes(spec.type, spec.shape)));
      written.push_back(std::move(t));
    }
    const Written file(written);
    EXPECT_EQ(detect(*file.checkpoint).value(), naming);
    const auto loaded = load_moe(*device, *file.checkpoint, config, {.naming = naming, .layer = 2});
    EXPECT_TRUE(loaded.ok()) << word(naming) << ": " << loaded.status().message;
  }
}

}  // namespace sluice::test
