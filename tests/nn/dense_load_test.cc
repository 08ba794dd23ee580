#include "nn/dense_load.h"

#include <gtest/gtest.h>

#include "harness/devices.h"
#include "harness/far_device.h"
#include "harness/moe_files.h"
#include "weights/packing.h"

namespace sluice::test {
namespace {

StoredTensor bf16(const std::string& name, std::vector<int64_t> shape, uint16_t first) {
  StoredTensor t{{name, StoredType::kBF16, std::move(shape)}, {}};
  t.bytes.resize(static_cast<size_t>(stored_bytes(t.what.type, t.what.shape).value()));
  for (size_t i = 0; i < t.bytes.size() / 2; ++i) {
    const auto v = static_cast<uint16_t>(first + i);
    std::memcpy(&t.bytes[2 * i], &v, 2);
  }
  return t;
}

class DenseLoad : public testing::Test {
 protected:
  DenseLoad()
      : file({{{"odd", StoredType::kU8, {1}}, {std::byte{1}}},
              bf16("q", {40, 33}, 0),
              bf16("k", {7, 33}, 5000),
              bf16("v", {7, 33}, 9000),
              bf16("norm", {33}, 0x3F80),
              {{"f8", StoredType::kF8E4M3, {4}}, std::vector<std::byte>(4)},
              {{"f32", StoredType::kF32, {4}}, std::vector<std::byte>(16)}}),
        device(cpu::open_device({.threads = 2}).value()) {}
  Written file;
  std::unique_ptr<Device> device;
};

TEST_F(DenseLoad, CopiesAsItIsAndWidensWithoutLoss) {
  const auto same = load_dense(*device, *file.checkpoint, {"norm", {33}, DType::kBF16}, 2);
  const auto wide = load_dense(*device, *file.checkpoint, {"norm", {33}, DType::kF32}, 2);
  ASSERT_TRUE(same.ok() && wide.ok()) << same.status().message << wide.status().message;
  for (uint16_t i = 0; i < 33; ++i) {
    EXPECT_EQ(same.value().view().as<uint16_t>()[i], 0x3F80 + i);
    EXPECT_EQ(wide.value().view().as<float>()[i], to_float(BF16{static_cast<uint16_t>(0x3F80 + i)}));
  }
  EXPECT_EQ(same.value().view().rank, 1);
  EXPECT_EQ(same.value().view().shape[0], 33);
}

TEST_F(DenseLoad, StackedProjectionsAreOneMatrix) {
  const DensePart parts[] = {{"q", 40}, {"k", 7}, {"v", 7}};
  const auto packed = pack_dense(*device, *file.checkpoint, parts, 33, 2);
  ASSERT_TRUE(packed.ok()) << packed.status().message;
  const PanelShape s = panel_shape(54, false, 33);
  ASSERT_EQ(packed.value().bytes(), s.code_bytes({}));
  for (int64_t i = 0; i < 54; ++i)
    for (int64_t k = 0; k < s.width; ++k) {
      const int64_t want = k >= 33  ? 0
                           : i < 40 ? i * 33 + k
                           : i < 47 ? 5000 + (i - 40) * 33 + k
                                    : 9000 + (i - 47) * 33 + k;
      ASSERT_EQ(packed.value().view().as<BF16>()[panel_bf16_index(s, panel_row(false, i, false), k)].bits,
                want)
          << i << " " << k;
    }
  const DensePart one[] = {{"q", 40}};
  EXPECT_TRUE(pack_dense(*device, *file.checkpoint, one, 33, 0).ok());
}

TEST_F(DenseLoad, StackedBiasesAreOneVector) {
  const Written biases({bf16("a", {5}, 10), bf16("b", {3}, 20)});
  const DensePart parts[] = {{"a", 5}, {"b", 3}};
  const auto stacked = load_stacked(*device, *biases.checkpoint, parts, DType::kBF16);
  ASSERT_TRUE(stacked.ok()) << stacked.status().message;
  const uint16_t want[] = {10, 11, 12, 13, 14, 20, 21, 22};
  EXPECT_EQ(std::memcmp(stacked.value().view().data, want, sizeof want), 0);
  const DensePart wrong[] = {{"a", 5}, {"b", 4}};
  EXPECT_NE(load_stacked(*device, *biases.checkpoint, wrong, DType::kBF16)
                .status()
                .message.find("b: wanted BF16[4], found BF16[3]"),
            std::string::npos);
  EXPECT_EQ(load_stacked(*device, *biases.checkpoint, {}, DType::kBF16).status().code,
            Code::kInvalidArgument);
}

TEST_F(DenseLoad, LossyConversionsAreRefusedByName) {
  const auto refused = [&](const Status& status, Code code, const std::string& words) {
    EXPECT_EQ(status.code, code) << status.message;
    EXPECT_NE(status.message.find(words), std::string::npos) << status.message;
  };
  refused(load_dense(*device, *file.checkpoint, {"f8", {4}, DType::kBF16}, 2).status(), Code::kUnsupported,
          "f8: wanted BF16[4], found F8_E4M3[4]");
  const auto callers = Checkpoint::of_memory("caller", {*file.checkpoint->find("f32").value()});
  refused(load_dense(*device, *callers.value(), {"f32", {4}, DType::kBF16}, 2).status(), Code::kUnsupported,
          "f32: wanted BF16[4], found F32[4]");
  refused(load_dense(*device, *file.checkpoint, {"norm", {3, 11}, DType::kBF16}, 2).status(), Code::kCorrupt,
          "norm: wanted BF16[3, 11], found BF16[33]");
  refused(load_dense(*device, *file.checkpoint, {"nor", {33}, DType::kBF16}, 2).status(), Code::kCorrupt,
          "the nearest is 'norm'");
  const DensePart parts[] = {{"q", 40}, {"k", 8}};
  refused(pack_dense(*device, *file.checkpoint, parts, 33, 1).status(), Code::kCorrupt,
          "k: wanted BF16[8, 33], found BF16[7, 33]");
  refused(pack_dense(*device, *file.checkpoint, {}, 33, 1).status(), Code::kInvalidArgument,
          "at least one feature");
}

// Fine-tuning tools save some tensors of bf16 models in F32 or F16.
TEST_F(DenseLoad, NumbersOfAFileAreRounded) {
  const float f32[] = {1, -2.5f, 1.00390625f, 1.01171875f, 3.0e38f, 1e-40f};  // the third and fourth are ties
  const uint16_t f16[] = {0x3c00, 0xc100, 0x0001, 0x03ff, 0x7bff, 0x8000};
  const uint16_t want32[] = {0x3f80, 0xc020, 0x3f80, 0x3f82, 0x7f62, 0x0001};
  const uint16_t want16[] = {0x3f80, 0xc020, 0x3380, 0x3880, 0x4780, 0x8000};
  const auto stored = [](const char* name, StoredType type, const auto& values) {
    StoredTensor t{{name, type, {6}}, std::vector<std::byte>(sizeof values)};
    std::memcpy(t.bytes.data(), values, sizeof values);
    return t;
  };
  const Written other({stored("f16", StoredType::kF16, f16), stored("f32", StoredType::kF32, f32)});
  const DensePart parts[] = {{"f32", 6}, {"f16", 6}};
  const auto biases = load_stacked(*device, *other.checkpoint, parts, DType::kBF16);
  ASSERT_TRUE(biases.ok()) << biases.status().message;
  const auto* got = biases.value().view().as<uint16_t>();
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(got[i], want32[i]) << i;
    EXPECT_EQ(got[6 + i], want16[i]) << i;
  }
  const auto wide = load_dense(*device, *other.checkpoint, {"f16", {6}, DType::kF32}, 1);
  ASSERT_TRUE(wide.ok()) << wide.status().message;
  EXPECT_EQ(wide.value().view().as<float>()[2], 0x1p-24f);
  EXPECT_EQ(wide.value().view().as<float>()[4], 65504);
  const float huge[] = {3.4e38f, 0, 0, 0, 0, 0};  // beyond the largest bf16
  const Written beyond({stored("huge", StoredType::kF32, huge)});
  EXPECT_NE(load_dense(*device, *beyond.checkpoint, {"huge", {6}, DType::kBF16}, 1)
                .status()
                .message.find("huge: wanted finite numbers, found an infinity at element 0"),
            std::string::npos);
}

// Tensors that go through a ring of page-locked memory, and tensors that are too small for it.
TEST(DenseLoadFar, StacksRowsInOrder) {
  StoredTensor q = bf16("q", {3000, 777}, 0);
  for (size_t i = 1; i < q.bytes.size(); i += 2) q.bytes[i] &= std::byte{0xBF};  // makes values finite
  const Written file({q, bf16("k", {5, 777}, 70), bf16("small", {3, 777}, 9)});
  FarDevice far(WeightLayout::kRowMajor);
  const auto bytes_of_part = [&](const char* name) {
    const CheckpointTensor& t = *file.checkpoint->find(name).value();
    return std::vector<std::byte>(t.data, t.data + t.bytes);
  };
  for (const int threads : {1, 4}) {
    for (const std::vector<DensePart>& parts :
         {std::vector<DensePart>{{"q", 3000}, {"k", 5}}, {{"small", 3}, {"k", 5}}}) {
      std::vector<std::byte> want;
      for (const DensePart& part : parts) {
        const auto bytes = bytes_of_part(part.name.c_str());
        want.insert(want.end(), bytes.begin(), bytes.end());
      }
      const auto packed = pack_dense(far, *file.checkpoint, parts, 777, threads);
      ASSERT_TRUE(packed.ok()) << packed.status().message;
      const Tensor& t = packed.value().view();
      EXPECT_EQ(t.dtype, DType::kBF16);
      EXPECT_EQ(t.rank, 2);
      EXPECT_EQ(t.shape[0], parts[0].features + parts[1].features);
      EXPECT_EQ(t.shape[1], 777);
      std::vector<std::byte> got(want.size());
      ASSERT_TRUE(far.copy(got.data(), t.data, got.size(), far.stream()).ok());
      ASSERT_TRUE(far.wait(far.stream()).ok());
      EXPECT_EQ(got, want) << parts[0].name << ", " << threads << " threads";
    }
  }
  FarDevice other;
  const DensePart one{"small", 3};
  const Status status = pack_dense(other, *file.checkpoint, {&one, 1}, 777, 1).status();
  EXPECT_EQ(status.code, Code::kUnsupported);
  EXPECT_NE(status.message.find("small: wanted row_major, or"), std::string::npos) << status.message;
}

TEST(DenseLoadFar, NamesTheFirstNonFiniteNumber) {
  StoredTensor large = bf16("large", {3000, 1000}, 0), small = bf16("small", {4}, 0);
  const auto spoil = [](StoredTensor& t, size_t element, uint16_t bits) {
    std::memcpy(&t.bytes[2 * element], &bits, 2);
  };
  for (StoredTensor* t : {&large, &small})
    for (size_t i = 0; i < t->bytes.size() / 2; ++i) spoil(*t, i, static_cast<uint16_t>(i & 0x3fff));
  spoil(large, 2'900'001, 0x7fc0), spoil(large, 2'000'001, 0xff80), spoil(small, 3, 0x7f80);
  const Written file({large, small});
  FarDevice far(WeightLayout::kRowMajor);
  const auto near = cpu::open_device({.threads = 2}).value();
  for (Device* device : {static_cast<Device*>(&far), near.get()}) {
    const auto refused = [&](const DenseTensor& wanted, const std::string& words) {
      const Status status = load_dense(*device, *file.checkpoint, wanted, 3).status();
      EXPECT_EQ(status.code, Code::kCorrupt);
      EXPECT_NE(status.message.find(words), std::string::npos) << status.message;
    };
    refused({"large", {3000, 1000}}, "large: wanted finite numbers, found an infinity at element 2000001");
    refused({"large", {3000, 1000}, DType::kBF16, Numbers::kNoNan},
            "large: wanted numbers, found NaN at element 2900001");
    refused({"small", {4}}, "small: wanted finite numbers, found an infinity at element 3");
    refused({"small", {4}, DType::kF32}, "small: wanted finite numbers, found an infinity at element 3");
    EXPECT_TRUE(load_dense(*device, *file.checkpoint, {"small", {4}, DType::kBF16, Numbers::kNoNan}, 3).ok());
    const DensePart part{"large", 3000};
    EXPECT_NE(pack_dense(*device, *file.checkpoint, {&part, 1}, 1000, 3)
                  .status()
                  .message.find("large: wanted finite numbers, found an infinity at element 2000001"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace sluice::test
