#include "text/tokenizer/nfc.h"

#include <gtest/gtest.h>

#include "base/utf8.h"

namespace sluice {
namespace {

TEST(Nfc, ComposesAndOrders) {
  EXPECT_EQ(nfc("e\u0301"), "é");
  EXPECT_EQ(nfc("q\u0307\u0323"), "q\u0323\u0307");
  EXPECT_EQ(nfc("o\u0302\u0323"), "ộ");
  EXPECT_EQ(nfc("\u212b"), "Å");             // a singleton decomposition
  EXPECT_EQ(nfc("\u0958"), "\u0915\u093c");  // excluded from composition
  EXPECT_EQ(nfc("\u1112\u1161\u11ab"), "한");
  EXPECT_EQ(nfc("\ud558\u11ab"), "한");
  EXPECT_EQ(nfc("\u1112\u1161\u11a7"), "하\u11a7");  // U+11A7 is no trailing consonant
  EXPECT_EQ(nfc("\u0344"), "\u0308\u0301");
  EXPECT_EQ(nfc("a\u0300\u0301"), "à\u0301");
  EXPECT_EQ(nfc("a\u0315\u0300"), "à\u0315");
  EXPECT_EQ(nfc("a\u0300\u0300"), "à\u0300");
  EXPECT_EQ(nfc("\u09c7\u09be"), "\u09cb");  // two starters
}

TEST(Nfc, LeavesWhatIsNormalized) {
  for (const char* text :
       {"", "plain", "\u00e9\u00c5", "한국어", "\u0301", "👍🏽", "\u0915\u093c", "x\u0301"})
    EXPECT_FALSE(nfc(text).has_value()) << text;
}

TEST(Nfc, KeepsInvalidBytes) {
  EXPECT_FALSE(nfc("\xff\xfe").has_value());
  EXPECT_EQ(nfc("e\u0301\xff"
                "e\u0301"),
            "é\xff"
            "é");
  EXPECT_FALSE(nfc("e\xff\u0301").has_value());
  EXPECT_FALSE(nfc("\xe2\x82").has_value());
}

// Normalizing twice gives the same text as normalizing once.
TEST(Nfc, IsIdempotent) {
  for (char32_t c = 0x80; c < 0x30000; c += c < 0x3000 ? 1 : 7) {
    if (c >= 0xd800 && c < 0xe000) continue;
    std::string text = "a";
    append_utf8(c, &text);
    append_utf8(0x300 + c % 0x70, &text);
    append_utf8(0x300 + c % 0x6b, &text);
    const std::string once = nfc(text).value_or(text);
    EXPECT_FALSE(nfc(once).has_value()) << static_cast<uint32_t>(c);
  }
}

}  // namespace
}  // namespace sluice
