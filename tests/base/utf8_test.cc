#include "base/utf8.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace sluice {
namespace {

constexpr char kU[] = "\xef\xbf\xbd";  // U+FFFD

TEST(Utf8, EveryCodePointComesBack) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    std::string text;
    append_utf8(c, &text);
    const Utf8Step step = utf8_step(text);
    const bool surrogate = c >= 0xd800 && c < 0xe000;
    ASSERT_EQ(step.valid, !surrogate) << static_cast<uint32_t>(c);
    if (!surrogate) {
      ASSERT_EQ(step.code_point, c);
      ASSERT_EQ(step.bytes, static_cast<int64_t>(text.size()));
    }
  }
}

TEST(Utf8, InvalidBytesBecomeReplacementsAsInPython) {
  const std::string u = kU;
  // Expected texts are bytes([...]).decode(errors="replace") of CPython 3.11.
  EXPECT_EQ(valid_utf8("\x80"), u);
  EXPECT_EQ(valid_utf8("\xc0\xaf"), u + u);
  EXPECT_EQ(valid_utf8("\xe0\x80\x80"), u + u + u);
  EXPECT_EQ(valid_utf8("\xed\xa0\x80"), u + u + u);
  EXPECT_EQ(valid_utf8("\xf4\x90\x80\x80"), u + u + u + u);
  EXPECT_EQ(valid_utf8("\xf5"), u);
  EXPECT_EQ(valid_utf8("\xe3\x81z"), u + "z");
  EXPECT_EQ(valid_utf8("\xf0\x9f\x91"), u);
  EXPECT_EQ(valid_utf8("\xf0\x9f\xc3\xa9"), u + "\xc3\xa9");
  EXPECT_EQ(valid_utf8("a\xffz"), "a" + u + "z");
}

TEST(Utf8, PiecesDoNotMatter) {
  Random random(3);
  for (int i = 0; i < 5000; ++i) {
    std::string bytes;
    for (int64_t n = random.integer(0, 12); n > 0; --n)
      bytes += static_cast<char>(random.integer(0, 3) ? random.integer(0x80, 0xff) : random.integer(0, 0x7f));
    Utf8Stream stream;
    std::string joined;
    for (size_t at = 0; at < bytes.size();) {
      const size_t size = static_cast<size_t>(random.integer(1, 4));
      joined += stream.push(std::string_view(bytes).substr(at, size));
      at += size;
    }
    joined += stream.finish();
    EXPECT_EQ(joined, valid_utf8(bytes));
  }
}

TEST(Utf8, ValidBytesEndBeforeTheFirstInvalidOne) {
  EXPECT_TRUE(is_utf8(""));
  EXPECT_TRUE(is_utf8("a\u00e4\u20ac\U0001f986"));
  // A truncated code point, a surrogate, an overlong form, and a byte that never occurs in UTF-8.
  for (const char* wrong : {"ab\xe2\x82", "ab\xed\xa0\x80", "ab\xc0\x80", "ab\xff"})
    EXPECT_EQ(valid_utf8_bytes(wrong), 2u);
}

}  // namespace
}  // namespace sluice
