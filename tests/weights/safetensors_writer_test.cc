#include "weights/safetensors_writer.h"

#include <sys/resource.h>

#include <csignal>

#include "weights/checkpoint.h"
#include "weights/files.h"

namespace sluice::test {
namespace {

std::vector<std::byte> zeros(size_t n) { return std::vector<std::byte>(n); }

TEST(SafetensorsWriter, PiecesMaySpanTensorsAndTheOldFileStaysUntilTheEnd) {
  TemporaryDirectory at;
  const std::string path = at.file("model.safetensors");
  write_bytes(path, "old");
  auto writer = SafetensorsWriter::create(path, {{"a", StoredType::kU8, {5}}, {"b", StoredType::kBF16, {3}}},
                                          {{"k", "v"}});
  ASSERT_TRUE(writer.ok()) << writer.status().message;
  EXPECT_EQ(writer.value()->bytes(), 11);
  std::vector<std::byte> all(11);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::byte>(i);
  const std::span<const std::byte> view(all);
  ASSERT_TRUE(writer.value()->write(view.first(7)).ok());
  EXPECT_EQ(std::filesystem::file_size(path), 3u);
  ASSERT_TRUE(writer.value()->write(view.subspan(7)).ok());
  ASSERT_TRUE(writer.value()->finish().ok());
  EXPECT_EQ(at.names(), std::vector<std::string>{"model.safetensors"});
  const auto checkpoint = Checkpoint::open(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message;
  const auto* b = checkpoint.value()->find("b").value();
  EXPECT_EQ(b->data[0], std::byte{5});
  EXPECT_EQ(b->data[5], std::byte{10});
  EXPECT_EQ(writer.value()->write(view.first(1)).code, Code::kInvalidArgument);
  EXPECT_EQ(writer.value()->finish().code, Code::kInvalidArgument);
}

TEST(SafetensorsWriter, AnAbandonedWriterLeavesNothing) {
  TemporaryDirectory at;
  {
    auto writer = SafetensorsWriter::create(at.file("m.safetensors"),
                                            {{"a", StoredType::kU8, {8}}, {"b", StoredType::kU8, {8}}});
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(writer.value()->write(zeros(10)).ok());
    EXPECT_EQ(at.names().size(), 1u);
    const Status early = writer.value()->finish();
    EXPECT_NE(early.message.find("b: wanted U8[8], found only 2 bytes of it"), std::string::npos)
        << early.message;
    const Status more = writer.value()->write(zeros(7));
    EXPECT_NE(more.message.find("at most the 6 bytes that the tensors still need, found 7"),
              std::string::npos)
        << more.message;
  }
  EXPECT_TRUE(at.names().empty());
}

TEST(SafetensorsWriter, NoSpaceIsAClearError) {
  TemporaryDirectory at;
  struct rlimit before {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit small = before;
  small.rlim_cur = 4096;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  Status status;
  {
    // A file system that cannot reserve space reports an error only when data is written.
    auto writer = SafetensorsWriter::create(at.file("m.safetensors"), {{"a", StoredType::kU8, {1 << 20}}});
    status = writer.ok() ? writer.value()->write(zeros(1 << 20)) : writer.status();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(status.code, Code::kIo);
  EXPECT_NE(status.message.find("; wanted 1048"), std::string::npos) << status.message;
  EXPECT_TRUE(at.names().empty());
  EXPECT_EQ(SafetensorsWriter::create(at.file("no/m.safetensors"), {}).status().code, Code::kIo);
}

TEST(SafetensorsWriter, RefusesWhatCannotBeRead) {
  TemporaryDirectory at;
  const auto refused = [&](std::vector<TensorToWrite> tensors, const std::string& words) {
    const Status status = SafetensorsWriter::create(at.file("m.safetensors"), std::move(tensors)).status();
    EXPECT_EQ(status.code, Code::kInvalidArgument);
    EXPECT_NE(status.message.find(words), std::string::npos) << status.message;
  };
  refused({{"a", StoredType::kU8, {1}}, {"a", StoredType::kU8, {1}}}, "'a' twice");
  refused({{"__metadata__", StoredType::kU8, {1}}}, "__metadata__");
  refused({{"a", StoredType::kU8, {-1}}}, "found -1");
  refused({{"a", StoredType::kF4, {3}}}, "whole number of bytes");
  refused({{"a", StoredType::kU8, {INT64_MAX}}}, "a: wanted");
  std::vector<TensorToWrite> nine;
  for (char name = 'a'; name <= 'i'; ++name)
    nine.push_back({std::string(1, name), StoredType::kU8, {INT64_MAX / 8}});
  refused(nine, "i: wanted a whole number of bytes, of all tensors below 2^63");
  refused({{"a", StoredType::kU8, std::vector<int64_t>(9, 1)}}, "8 dimensions");
  refused({{"\xFF", StoredType::kU8, {1}}}, "UTF-8");
  EXPECT_TRUE(at.names().empty());
}

}  // namespace
}  // namespace sluice::test
