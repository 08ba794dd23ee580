// Reads every weight of a loaded model back from its device and compares it with the checkpoint.
#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "models/load.h"
#include "nn/moe/source.h"

namespace sluice::test {

inline std::vector<std::byte> bytes_on(Device& device, const Tensor& t) {
  std::vector<std::byte> out(static_cast<size_t>(bytes_of(t.dtype, elements_of(t))));
  EXPECT_TRUE(device.copy(out.data(), t.data, out.size(), device.stream()).ok());
  EXPECT_TRUE(device.wait(device.stream()).ok());
  return out;
}

// Dense weights, row-major as in checkpoints.
inline void expect_dense_bytes(Device& device, const LoadedModel& model, const Checkpoint& checkpoint) {
  const ModelConfig& config = model.config();
  for (const TensorSpec& spec : families().front()->tensors(config, MoeNaming::kGptOss)) {
    // compared by expect_expert_bytes()
    if (spec.weight.starts_with("experts.") && !spec.weight.ends_with("_bias")) continue;
    const Tensor at = model.weights()(spec.layer, spec.weight);
    ASSERT_TRUE(at.present()) << spec.weight;
    const CheckpointTensor& want = *checkpoint.find(spec.name).value();
    const std::vector<std::byte> got = bytes_on(device, at);
    const auto begin = static_cast<size_t>(spec.first_row * (want.bytes / want.shape[0]));
    ASSERT_LE(begin + static_cast<size_t>(want.bytes), got.size()) << spec.name;
    EXPECT_EQ(std::memcmp(got.data() + begin, want.data, static_cast<size_t>(want.bytes)), 0) << spec.name;
  }
}

// Experts in the device's layout, compared with experts packed by the host.
inline void expect_expert_bytes(Device& device, const LoadedModel& model, const Checkpoint& checkpoint) {
  const MoeConfig& config = model.config().decoder.moe();
  for (int64_t layer = 0; layer < std::ssize(model.config().decoder.layers); ++layer) {
    const auto source = find_moe(checkpoint, config, MoeNaming::kGptOss, layer, {});
    ASSERT_TRUE(source.ok()) << source.status().message;
    const ExpertWeights w = model.weights().moe(layer, config).experts;
    const auto same = [&](const PackedMatrix& m, MatrixSource ExpertSource::*from, const Tensor& codes,
                          const Tensor& scales) {
      const PackedSizes sizes = packed_sizes(m);
      const std::vector<std::byte> got = bytes_on(device, codes), got_scales = bytes_on(device, scales);
      std::vector<std::byte> want(static_cast<size_t>(sizes.code_bytes)),
          want_scales(static_cast<size_t>(sizes.scale_bytes));
      for (size_t e = 0; e < source.value().of_expert.size(); ++e) {
        const PackedWeights to{make_tensor(want.data(), DType::kU8, {sizes.code_bytes}),
                               make_tensor(want_scales.data(), DType::kU8, {sizes.scale_bytes})};
        ASSERT_TRUE(pack_rows(m, source.value().of_expert[e].*from, to, {.threads = 0}).ok());
        EXPECT_EQ(std::memcmp(got.data() + e * want.size(), want.data(), want.size()), 0)
            << "layer " << layer << ", expert " << e;
        EXPECT_EQ(
            std::memcmp(got_scales.data() + e * want_scales.size(), want_scales.data(), want_scales.size()),
            0)
            << "layer " << layer << ", scales of expert " << e;
      }
    };
    same(source.value().up, &ExpertSource::up, w.up, w.up_scale);
    same(source.value().down, &ExpertSource::down, w.down, w.down_scale);
  }
}

}  // namespace sluice::test
