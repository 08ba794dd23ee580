#include "server/http/line_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>

namespace sluice {
namespace {

class LineWriters : public testing::Test {
 protected:
  void SetUp() override {
    std::array<int, 2> ends;
    ASSERT_EQ(pipe(ends.data()), 0);
    reader_ = ends[0], writer_ = ends[1];
    ASSERT_EQ(fcntl(writer_, F_SETPIPE_SZ, 4096), 4096);
  }
  void TearDown() override {
    if (reader_ >= 0) close(reader_);
    close(writer_);
  }
  std::string read_some(size_t most) {
    std::string out(most, '\0');
    out.resize(static_cast<size_t>(std::max<ssize_t>(read(reader_, out.data(), most), 0)));
    return out;
  }
  static std::string note(int64_t lines) { return "missing " + std::to_string(lines) + "\n"; }
  // The number of lines that the notes "missing N" in `text` report.
  static int64_t noted(const std::string& text) {
    int64_t lines = 0;
    for (size_t at = text.find("missing "); at != text.npos; at = text.find("missing ", at + 1))
      if (text.find('\n', at) != text.npos) lines += std::stoll(text.substr(at + 8));
    return lines;
  }
  int reader_ = -1, writer_ = -1;
};

TEST_F(LineWriters, LinesComeInOrder) {
  LineWriter lines(writer_, 1000, note);
  for (const char* line : {"a\n", "b\n", "c\n"}) lines.write(line);
  EXPECT_TRUE(lines.flush(std::chrono::minutes(1)));
  EXPECT_EQ(read_some(100), "a\nb\nc\n");
  EXPECT_EQ(lines.dropped(), 0);
}

TEST_F(LineWriters, MissingLinesAreCountedWhereTheyAreMissing) {
  const std::string full(4095, 'x');
  std::string all;
  {
    LineWriter lines(writer_, 10000, note);
    lines.write(full + '\n');  // fills the pipe
    ASSERT_TRUE(lines.flush(std::chrono::minutes(1)));
    lines.write(full + '\n');  // blocks in a write
    while (lines.flush(std::chrono::milliseconds(0))) {
    }
    for (int i = 0; i < 10; ++i) lines.write(full + '\n');  // some fit into the queue
    const int64_t dropped = lines.dropped();
    EXPECT_GE(dropped, 8);
    EXPECT_LT(dropped, 10);
    lines.drop();
    while (noted(all) < dropped + 1) all += read_some(4096);
    EXPECT_EQ(noted(all), dropped + 1);
    lines.write("end\n");
  }
  while (!all.ends_with("end\n")) all += read_some(4096);
  EXPECT_TRUE(all.ends_with("\nend\n"));
}

TEST_F(LineWriters, LinesAreCountedWhenTheReaderLeaves) {
  LineWriter lines(writer_, 1000, note);
  close(reader_);
  reader_ = -1;
  for (int i = 0; i < 3; ++i) lines.write("a\n");
  EXPECT_TRUE(lines.flush(std::chrono::minutes(1)));
  EXPECT_EQ(lines.dropped(), 3);
}

TEST_F(LineWriters, TheEndDoesNotWaitForAReader) {
  LineWriter lines(writer_, 100000, note);
  for (int i = 0; i < 10; ++i) lines.write(std::string(4095, 'x') + '\n');
}

}  // namespace
}  // namespace sluice
