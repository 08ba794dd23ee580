// The shipped model in other forms: with its authors' tensor names, and with experts in bf16.
#include "models/load.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "backends/cpu/device.h"
#include "engine/engine.h"
#include "harness/model_copy.h"
#include "weights/checkpoint.h"
#include "weights/files.h"
#include "weights/mxfp4.h"

namespace sluice::test {
namespace {

std::vector<std::byte> bytes_of_part(const Checkpoint& from, const std::string& name) {
  const CheckpointTensor* t = from.find(name).value();
  return {t->data, t->data + t->bytes};
}

// [experts, rows, width / 32, 16] codes as bf16 [experts, width, rows]; every value is exact.
std::vector<std::byte> as_columns(const std::vector<std::byte>& codes, const std::vector<std::byte>& scales,
                                  const std::vector<int64_t>& shape) {
  const int64_t experts = shape[0], width = shape[1], rows = shape[2];
  const size_t count = static_cast<size_t>(experts * width * rows);
  std::vector<float> values(count);
  const auto bytes = [](const std::vector<std::byte>& v) {
    return std::span(reinterpret_cast<const uint8_t*>(v.data()), v.size());
  };
  EXPECT_TRUE(dequantise_mxfp4(bytes(codes), bytes(scales), values).ok());
  std::vector<std::byte> out(2 * count);
  auto* to = reinterpret_cast<BF16*>(out.data());
  for (int64_t e = 0; e < experts; ++e)
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t k = 0; k < width; ++k)
        to[(e * width + k) * rows + r] = to_bf16(values[static_cast<size_t>((e * rows + r) * width + k)]);
  return out;
}

// The shipped model with another tensor naming, in its own directory.
void write_as(MoeNaming naming, const std::string& directory) {
  const auto from = Checkpoint::open(kShipped);
  ModelConfig config = read_model_config(kShipped).value();
  const Family& family = *families().front();
  // Both lists have the same parts in the same order, except that one of them joins some parts.
  std::map<std::pair<int64_t, std::string>, std::vector<std::vector<std::byte>>> parts;
  for (const TensorSpec& spec : family.tensors(config, MoeNaming::kGptOss))
    parts[{spec.layer, spec.weight}].push_back(bytes_of_part(*from.value(), spec.name));
  std::vector<StoredTensor> tensors;
  const auto experts = [&](const TensorSpec& spec) {
    return as_columns(parts.at({spec.layer, spec.weight})[0],
                      parts.at({spec.layer, spec.weight + "_scale"})[0], spec.shape);
  };
  if (naming == MoeNaming::kGptOssBf16)
    for (LayerConfig& layer : config.decoder.layers) layer.mlp.expert_w = DType::kBF16;
  std::map<std::pair<int64_t, std::string>, size_t> used;
  for (const TensorSpec& spec : family.tensors(config, naming)) {
    StoredTensor t{{spec.name, spec.type, spec.shape}, {}};
    const std::pair key(spec.layer, spec.weight);
    const auto& pieces = parts.at(key);
    const auto wanted = static_cast<size_t>(*stored_bytes(spec.type, spec.shape));
    if (naming == MoeNaming::kGptOssBf16 && (spec.weight == "experts.up" || spec.weight == "experts.down"))
      t.bytes = experts(spec);
    while (t.bytes.size() < wanted && used[key] < pieces.size()) {
      const auto& piece = pieces[used[key]++];
      t.bytes.insert(t.bytes.end(), piece.begin(), piece.end());
    }
    ASSERT_EQ(t.bytes.size(), wanted) << spec.name;
    tensors.push_back(std::move(t));
  }
  write_tensors(directory + "/model.safetensors", tensors);
  Json json = read_json(kShipped / "config.json", 1 << 20).value();
  if (naming == MoeNaming::kGptOssBf16) json.erase("quantization_config");
  std::ofstream(directory + "/config.json") << json.dump();
}

std::vector<float> logits_of(const std::string& directory, DType x) {
  const auto device = cpu::open_device({.threads = 2}).value();
  const auto model = LoadedModel::load(*device, directory, {.x = x});
  EXPECT_TRUE(model.ok()) << model.status().message;
  if (!model.ok()) return {};
  const auto engine = Engine::make(*device, model.value()->config().decoder, model.value()->weights(), {});
  return engine.value()->logits({9, 8, 7, 6, 5, 400, 300, 200, 100, 3}, {4, 9}).value();
}

}  // namespace

TEST(LoadedModel, TheAuthorsOwnNamesGiveTheSameBits) {
  const TemporaryDirectory other;
  write_as(MoeNaming::kGptOssOriginal, other.path());
  const auto wanted = logits_of(kShipped, DType::kBF16);
  ASSERT_FALSE(wanted.empty());
  EXPECT_EQ(logits_of(other.path(), DType::kBF16), wanted);
}

// bf16 represents every MXFP4 value exactly, so only the order of sums can differ.
TEST(LoadedModel, ExpertsInBf16GiveTheSameLogits) {
  const TemporaryDirectory other;
  write_as(MoeNaming::kGptOssBf16, other.path());
  const auto wanted = logits_of(kShipped, DType::kF32), got = logits_of(other.path(), DType::kF32);
  ASSERT_EQ(got.size(), wanted.size());
  ASSERT_FALSE(got.empty());
  double worst = 0, largest = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    worst = std::max<double>(worst, std::abs(got[i] - wanted[i]));
    largest = std::max<double>(largest, std::abs(wanted[i]));
  }
  // Both differ from the exact logits by at most 16 times the noise of f32 (parity_test.cc), which is 2e-6
  // here.
  EXPECT_LT(worst, 2 * 16 * 2e-6 * largest);
  const auto device = cpu::open_device({.threads = 1}).value();
  const auto model = LoadedModel::load(*device, other.path()).value();
  EXPECT_EQ(model->config().decoder.moe().expert_w, DType::kBF16);
  EXPECT_GT(model->weight_bytes(), 40'000'000);  // four times as many bytes per weight
}

// Merged fine-tunes keep the quantization_config of their base model.
TEST(LoadedModel, ExpertsInBf16OverrideAConfigOfMxfp4) {
  const TemporaryDirectory plain, left_in;
  write_as(MoeNaming::kGptOssBf16, plain.path());
  write_as(MoeNaming::kGptOssBf16, left_in.path());
  std::filesystem::copy_file(kShipped / "config.json", left_in.path() + "/config.json",
                             std::filesystem::copy_options::overwrite_existing);
  const auto wanted = logits_of(plain.path(), DType::kF32);
  ASSERT_FALSE(wanted.empty());
  EXPECT_EQ(logits_of(left_in.path(), DType::kF32), wanted);
}

TEST(LoadedModel, Mxfp4WithoutItsConfigIsRefused) {
  ModelCopy copy;
  copy.change_config([](Json& c) { c.erase("quantization_config"); });
  const auto device = cpu::open_device({.threads = 1}).value();
  const Status status = LoadedModel::load(*device, copy.path()).status();
  EXPECT_EQ(status.code, Code::kCorrupt);
  EXPECT_NE(status.message.find("config.json: quantization_config: wanted {"), std::string::npos)
      << status.message;
}

TEST(LoadedModel, ActiveBytesAreTheBytesReadPerToken) {
  const auto device = cpu::open_device({.threads = 1}).value();
  const auto model = LoadedModel::load(*device, kShipped, {.canary = LoadOptions::Canary::kSkip}).value();
  // 6 layers with qkv [384, 256], o [256, 256] and 4 of 16 experts, and the output [1024, 256]; biases and
  // routers are small.
  const int64_t dense = 2 * (6 * (384 + 256) * 256 + 1024 * 256);
  const int64_t experts = 6 * 4 * 3 * 256 * 256 * 17 / 32;
  EXPECT_GE(model->active_bytes(), dense + experts);
  EXPECT_LE(model->active_bytes(), (dense + experts) * 103 / 100);
  EXPECT_GT(model->weight_bytes(), 13'000'000);
}

}  // namespace sluice::test
