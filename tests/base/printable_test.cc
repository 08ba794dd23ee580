// Terminal control characters become visible, and nothing else changes.
#include "base/printable.h"

#include <gtest/gtest.h>

namespace sluice::test {

TEST(Printable, EscapesWhatATerminalObeys) {
  EXPECT_EQ(printable("a\x1b[31mb"), "a\\x1b[31mb");
  EXPECT_EQ(printable("a\nb\tc\rd"), "a\\nb\\tc\\rd");
  EXPECT_EQ(printable(std::string_view("\0\x7f", 2)), "\\x00\\x7f");
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m"),
            "\\x9b"
            "31m");  // CSI as one code point
}

TEST(Printable, LeavesTextAlone) {
  EXPECT_EQ(printable("b\xc3\xa4r \xe2\x82\xac \xc2\xa0"), "b\xc3\xa4r \xe2\x82\xac \xc2\xa0");
  EXPECT_EQ(printable("\xff\xc2"), "\xff\xc2");
  EXPECT_EQ(printable(""), "");
}

TEST(Printable, ManyLinesKeepNewlinesAndTabs) {
  EXPECT_EQ(printable("a\n\tb\x1b\r", Lines::kMany), "a\n\tb\\x1b\\r");
}

}  // namespace sluice::test
