#include "weights/checkpoint.h"

#include <sys/stat.h>

#include <cstring>

#include "weights/files.h"

namespace sluice::test {
namespace {

StoredTensor tensor(const std::string& name, StoredType type, std::vector<int64_t> shape, uint8_t first = 0) {
  StoredTensor out{{name, type, shape}, {}};
  out.bytes.resize(static_cast<size_t>(stored_bytes(type, shape).value()));
  for (size_t i = 0; i < out.bytes.size(); ++i) out.bytes[i] = static_cast<std::byte>(first + i);
  return out;
}

// The error from opening a file with these bytes.
Status opened(const std::string& bytes) {
  TemporaryDirectory at;
  write_bytes(at.file("x.safetensors"), bytes);
  return Checkpoint::open(at.file("x.safetensors")).status();
}
void expect_corrupt(const std::string& bytes, const std::string& words) {
  const Status status = opened(bytes);
  EXPECT_EQ(status.code, Code::kCorrupt) << words;
  EXPECT_NE(status.message.find(words), std::string::npos) << status.message;
  EXPECT_NE(status.message.find("x.safetensors"), std::string::npos) << status.message;
}
std::string one(const std::string& fields) { return "{\"t\":{" + fields + "}}"; }

TEST(Checkpoint, WrittenTensorsAreReadBack) {
  TemporaryDirectory at;
  const std::vector<StoredTensor> tensors = {
      tensor("b", StoredType::kBF16, {2, 3}), tensor("a", StoredType::kU8, {5}, 40),
      tensor("f", StoredType::kF4, {2, 32}, 7), tensor("s", StoredType::kF32, {}),
      tensor("e", StoredType::kI64, {0, 7})};
  write_tensors(at.file("model.safetensors"), tensors);
  EXPECT_EQ(at.names(), std::vector<std::string>{"model.safetensors"});
  const auto checkpoint = Checkpoint::open(at.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message;
  EXPECT_EQ(checkpoint.value()->tensors().size(), 5u);
  EXPECT_EQ(checkpoint.value()->bytes(), 12 + 5 + 32 + 4);
  for (const StoredTensor& t : tensors) {
    const auto found = checkpoint.value()->find(t.what.name, t.what.type, t.what.shape);
    ASSERT_TRUE(found.ok()) << found.status().message;
    ASSERT_EQ(found.value()->bytes, static_cast<int64_t>(t.bytes.size()));
    const std::vector<std::byte> before(found.value()->data, found.value()->data + found.value()->bytes);
    EXPECT_EQ(before, t.bytes) << t.what.name;
    checkpoint.value()->prefetch(*found.value());
    checkpoint.value()->release(*found.value());
    const std::vector<std::byte> after(found.value()->data, found.value()->data + found.value()->bytes);
    EXPECT_EQ(after, t.bytes) << t.what.name << " after its pages were released";
  }
}

TEST(Checkpoint, ErrorsNameTensorsAndTheNearestOne) {
  TemporaryDirectory at;
  write_tensors(at.file("only.safetensors"), {tensor("model.norm.weight", StoredType::kBF16, {4})});
  const auto checkpoint = Checkpoint::open(at.path());
  ASSERT_TRUE(checkpoint.ok()) << "a single file may have any name";
  const Status missing = checkpoint.value()->find("model.norm.weigth").status();
  EXPECT_EQ(missing.code, Code::kCorrupt);
  EXPECT_NE(missing.message.find("the nearest is 'model.norm.weight'"), std::string::npos) << missing.message;
  const Status shape = checkpoint.value()->find("model.norm.weight", StoredType::kF32, {4, 1}).status();
  EXPECT_NE(shape.message.find("only.safetensors: model.norm.weight: wanted F32[4, 1], found BF16[4]"),
            std::string::npos)
      << shape.message;
}

TEST(Checkpoint, DamagedFilesAreRefusedByName) {
  const std::string good = one(R"("dtype":"U8","shape":[4],"data_offsets":[0,4])");
  EXPECT_TRUE(opened(with_header(good, 4)).ok());
  EXPECT_TRUE(opened(with_header(good + "   ", 4)).ok()) << "the header may be padded";
  // The safetensors library refuses these, too.
  expect_corrupt(with_header(good + std::string(3, '\0'), 4), "wanted JSON, found a NUL byte at byte");
  expect_corrupt(with_header("\xef\xbb\xbf" + good, 4),
                 "wanted a header that begins with {, found a byte order mark");
  expect_corrupt(with_header(good, 3),
                 "wanted at most the 3 bytes that follow the file's header, found 0 to 4");
  expect_corrupt(with_header(good, 5), "the end of its last tensor");
  expect_corrupt("1234567", "at least 8 bytes, found 7");
  expect_corrupt(std::string(8, '\xFF'), "header of at most 100000000 bytes, found 18446744073709551615");
  expect_corrupt(with_header(good, 4).substr(0, 20), "bytes for the header, found 20");
  expect_corrupt(with_header("[]", 0), "wanted an object");
  expect_corrupt(with_header("{", 0), "wanted JSON");
  expect_corrupt(with_header(std::string(100, '['), 0), "levels of nesting");
  expect_corrupt(with_header(R"({"t":1})", 0), "t: wanted an object, found 1");
  expect_corrupt(with_header(one(R"("dtype":"U9","shape":[4],"data_offsets":[0,4])"), 4), "found 'U9'");
  expect_corrupt(with_header(one(R"("dtype":"U8","shape":[-4],"data_offsets":[0,4])"), 4), "t.shape[0]");
  expect_corrupt(with_header(one(R"("dtype":"U8","shape":[4.5],"data_offsets":[0,4])"), 4), "t.shape[0]");
  expect_corrupt(with_header(one(R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,4],"data_offsets":[0,4])"), 4),
                 "8 dimensions");
  expect_corrupt(with_header(one(R"("dtype":"U8","shape":[4],"data_offsets":[4,0])"), 4),
                 "wanted begin <= end, found 4 to 0");
  expect_corrupt(with_header(one(R"("dtype":"U8","shape":[4],"data_offsets":[0])"), 4), "two offsets");
  expect_corrupt(with_header(one(R"("dtype":"U8","shape":[4],"data_offsets":[0,18446744073709551615])"), 4),
                 "data_offsets[1]");
  expect_corrupt(with_header(one(R"("dtype":"BF16","shape":[4],"data_offsets":[0,4])"), 4),
                 "wanted 8 bytes for BF16[4], found 0 to 4");
  expect_corrupt(with_header(one(R"("dtype":"F4","shape":[3],"data_offsets":[0,1])"), 1),
                 "whole number of bytes");
  expect_corrupt(
      with_header(
          one(R"("dtype":"F32","shape":[4611686018427387904,4611686018427387904],"data_offsets":[0,4])"), 4),
      "below 2^63");
  expect_corrupt(with_header(one(R"("dtype":"U8","shape":[4],"data_offsets":[0,4],"extra":1)"), 4),
                 "found 'extra'");
  expect_corrupt(
      with_header(R"({"__metadata__":{"format":3},"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1),
      "__metadata__.format: wanted a string, found 3");
}

TEST(Checkpoint, OverlapsAndHolesAreRefused) {
  const auto two = [](const std::string& a, const std::string& b) {
    return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + a +
           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + b + "}}";
  };
  EXPECT_TRUE(opened(with_header(two("[4,8]", "[0,4]"), 8)).ok())
      << "the header may list tensors in any order";
  expect_corrupt(with_header(two("[0,4]", "[2,6]"), 6),
                 "b: wanted its bytes at offset 4, where a ends, found offset 2 (an overlap)");
  expect_corrupt(with_header(two("[0,4]", "[0,4]"), 4), "(an overlap)");
  expect_corrupt(with_header(two("[0,4]", "[5,9]"), 9),
                 "b: wanted its bytes at offset 4, where a ends, found offset 5 (a hole)");
  expect_corrupt(with_header(two("[1,5]", "[5,9]"), 9),
                 "a: wanted its bytes at offset 0, where the header ends, found offset 1");
  expect_corrupt(
      with_header(
          R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
          2),
      "twice in one object");
}

class Sharded : public testing::Test {
 protected:
  void SetUp() override {
    write_tensors(at.file("m-1.safetensors"), {tensor("a", StoredType::kU8, {4})});
    write_tensors(at.file("m-2.safetensors"),
                  {tensor("b", StoredType::kU8, {4}), tensor("c", StoredType::kU8, {4})});
  }
  Status with_map(const std::string& map) {
    write_bytes(at.file("model.safetensors.index.json"),
                R"({"metadata":{"total_size":12},"weight_map":)" + map + "}");
    return Checkpoint::open(at.path()).status();
  }
  void refused(const std::string& map, const std::string& words) {
    const Status status = with_map(map);
    EXPECT_EQ(status.code, Code::kCorrupt) << map;
    EXPECT_NE(status.message.find(words), std::string::npos) << status.message;
  }
  TemporaryDirectory at;
};

TEST_F(Sharded, ShardsHoldExactlyWhatTheIndexSays) {
  const Status good = with_map(R"({"a":"m-1.safetensors","b":"m-2.safetensors","c":"m-2.safetensors"})");
  EXPECT_TRUE(good.ok()) << good.message;
  const auto checkpoint = Checkpoint::open(at.file("model.safetensors.index.json"));
  ASSERT_TRUE(checkpoint.ok()) << "an index may be named directly";
  EXPECT_EQ(checkpoint.value()->files().size(), 2u);
  EXPECT_EQ(*checkpoint.value()->find("b").value()->file, at.file("m-2.safetensors"));
  refused(R"({"a":"m-2.safetensors","b":"m-2.safetensors","c":"m-2.safetensors"})",
          "a: wanted it in m-2.safetensors");
  refused(R"({"a":"m-1.safetensors","b":"m-1.safetensors","c":"m-2.safetensors"})",
          "b: wanted it in m-1.safetensors");
  refused(R"({"a":"m-1.safetensors","b":"m-2.safetensors"})", "c: wanted an entry in");
  refused(R"({"a":"m-1.safetensors","b":"m-2.safetensors","c":"m-2.safetensors","d":"m-1.safetensors"})",
          "d: wanted it in m-1.safetensors, found no such tensor there");
  refused("{}", "at least one tensor");
  refused("[]", "an object");
}

TEST_F(Sharded, AnIndexCannotLeaveItsDirectory) {
  for (const char* name : {"../m-1.safetensors", "/etc/passwd", "sub/m-1.safetensors", "..", "",
                           ".safetensors", ".hidden.safetensors", "m-1.bin", "m\\u0000.safetensors"})
    refused(std::string(R"({"a":")") + name + R"("})",
            "a: wanted the name of a .safetensors file in the index's directory");
  refused(R"({"a":7})", "a: wanted a string, found 7");
  const Status gone = with_map(R"({"a":"m-3.safetensors"})");
  EXPECT_EQ(gone.code, Code::kIo);
  EXPECT_NE(gone.message.find("m-3.safetensors: cannot be opened"), std::string::npos) << gone.message;
}

TEST_F(Sharded, ATensorInTwoShardsIsRefused) {
  write_tensors(at.file("m-1.safetensors"),
                {tensor("a", StoredType::kU8, {4}), tensor("b", StoredType::kU8, {4})});
  refused(R"({"a":"m-1.safetensors","b":"m-2.safetensors","c":"m-2.safetensors"})",
          "b: wanted it in m-2.safetensors");
}

TEST_F(Sharded, WithoutAnIndexTwoFilesAreAmbiguous) {
  const Status two = Checkpoint::open(at.path()).status();
  EXPECT_EQ(two.code, Code::kIo);
  EXPECT_NE(two.message.find("found 2 *.safetensors and no index"), std::string::npos) << two.message;
  write_tensors(at.file("model.safetensors"), {tensor("a", StoredType::kU8, {4})});
  EXPECT_TRUE(Checkpoint::open(at.path()).ok()) << "model.safetensors takes precedence";
  const Status both = with_map(R"({"a":"m-1.safetensors","b":"m-2.safetensors","c":"m-2.safetensors"})");
  EXPECT_EQ(both.code, Code::kInvalidArgument);
  EXPECT_NE(both.message.find("found model.safetensors and an index of other files "
                              "(model.safetensors.index.json: m-1.safetensors); move model.safetensors or "
                              "the index out of the directory"),
            std::string::npos)
      << both.message;
}

// mlx-lm saves an index even for one file.
TEST_F(Sharded, AnIndexOfTheOneFileIsTheSameCheckpoint) {
  write_tensors(at.file("model.safetensors"),
                {tensor("a", StoredType::kU8, {4}), tensor("b", StoredType::kU8, {4})});
  const Status one = with_map(R"({"a":"model.safetensors","b":"model.safetensors"})");
  EXPECT_TRUE(one.ok()) << one.message;
  refused(R"({"a":"model.safetensors"})", "b: wanted an entry in");
  const Status more = with_map(R"({"a":"model.safetensors","b":"model.safetensors","c":"m-2.safetensors"})");
  EXPECT_NE(more.message.find("index of other files (model.safetensors.index.json: m-2.safetensors)"),
            std::string::npos)
      << more.message;
}

// Other tools' files may be beside those that transformers reads.
TEST_F(Sharded, FilesOfTransformersComeBeforeOthers) {
  write_bytes(at.file("consolidated.safetensors.index.json"), R"({"weight_map":{"x":"x.safetensors"}})");
  EXPECT_EQ(Checkpoint::open(at.path()).status().code, Code::kIo) << "the only index names a missing file";
  write_bytes(at.file("other.safetensors.index.json"), "{}");
  const Status two = Checkpoint::open(at.path()).status();
  EXPECT_NE(two.message.find("found consolidated.safetensors.index.json and other.safetensors.index.json; "
                             "keep one of them in the directory"),
            std::string::npos)
      << two.message;
  const Status good = with_map(R"({"a":"m-1.safetensors","b":"m-2.safetensors","c":"m-2.safetensors"})");
  EXPECT_TRUE(good.ok()) << good.message;
}

TEST(Checkpoint, WhatIsNotAFileIsRefused) {
  TemporaryDirectory at;
  EXPECT_EQ(Checkpoint::open(at.path()).status().code, Code::kIo);
  EXPECT_NE(Checkpoint::open(at.file("x.safetensors")).status().message.find("found nothing"),
            std::string::npos);
  write_bytes(at.file("x.safetensors"), "");
  EXPECT_NE(Checkpoint::open(at.path()).status().message.find("an empty one"), std::string::npos);
  ASSERT_EQ(mkfifo(at.file("p.safetensors").c_str(), 0600), 0);
  EXPECT_NE(Checkpoint::open(at.file("p.safetensors")).status().message.find("wanted a regular file"),
            std::string::npos);
  write_bytes(at.file("x.bin"), "1");
  EXPECT_EQ(Checkpoint::open(at.file("x.bin")).status().code, Code::kInvalidArgument);
}

}  // namespace
}  // namespace sluice::test
