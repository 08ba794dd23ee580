#include "base/fields.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

struct Example {
  int64_t count = 3;
  double scale = 1.5;
  bool bias = false;
  DType x = DType::kBF16;
  template <class V, class P>
  static void fields(V& v, P& p) {
    v("count", p.count, "a number");
    v("scale", p.scale, "a real");
    v("bias", p.bias, "a switch");
    v("x", p.x, "a word");
  }
};

TEST(Fields, PrintAndReadBack) {
  Example example{.count = -7, .scale = 0.1, .bias = true, .x = DType::kF32};
  EXPECT_EQ(fields_text(example), "count=-7 scale=0.1 bias=1 x=f32");
  Example read;
  ASSERT_TRUE(parse_fields(fields_text(example), &read).ok());
  EXPECT_EQ(fields_text(read), fields_text(example));
}

TEST(Fields, UnnamedFieldsKeepTheirDefaults) {
  Example example;
  ASSERT_TRUE(parse_fields("  x=f32   count=9 ", &example).ok());
  EXPECT_EQ(fields_text(example), "count=9 scale=1.5 bias=0 x=f32");
  ASSERT_TRUE(parse_fields("", &example).ok());
}

TEST(Fields, NearestIsAMisspeltNameOrTheRestOfOne) {
  const std::string flags[] = {"--help", "--temperature", "--top-k", "--max-num-seqs"};
  EXPECT_EQ(nearest("--temp", flags), "--temperature");
  EXPECT_EQ(nearest("--hepl", flags), "--help");
  EXPECT_EQ(nearest("--max-seqs", flags), "--max-num-seqs");
  EXPECT_EQ(nearest("--nothing-like-it", flags), "");
}

TEST(Fields, ExtremesOfIntegersAndReals) {
  Example example;
  ASSERT_TRUE(parse_fields("count=-9223372036854775808 scale=inf", &example).ok());
  EXPECT_EQ(example.count, INT64_MIN);
  EXPECT_EQ(fields_text(example), "count=-9223372036854775808 scale=inf bias=0 x=bf16");
  EXPECT_FALSE(parse_fields("count=9223372036854775808", &example).ok());
}

TEST(Fields, BadValuesSayWhatIsWanted) {
  Example example;
  const auto message = [&](const char* line) {
    const Status status = parse_fields(line, &example);
    EXPECT_EQ(status.code, Code::kInvalidArgument) << line;
    return status.message;
  };
  EXPECT_EQ(message("count=12x"), "count: wanted an integer, found '12x'");
  EXPECT_EQ(message("count="), "count: wanted an integer, found ''");
  EXPECT_EQ(message("count"), "count: wanted an integer, found ''");
  EXPECT_EQ(message("scale=fast"), "scale: wanted a number, found 'fast'");
  EXPECT_EQ(message("bias=yes"), "bias: wanted one of 0, 1, found 'yes'");
  EXPECT_EQ(message("x=bf17"),
            "x: wanted one of f32, bf16, e2m1, e8m0, i32, i64, i16, u8, e4m3, found 'bf17'");
}

TEST(Fields, UnknownNamesGetTheNearestOne) {
  Example example;
  EXPECT_EQ(set_field(example, "cuont", "1").message, "unknown field 'cuont'; did you mean 'count'?");
  EXPECT_EQ(set_field(example, "temperature", "1").message,
            "unknown field 'temperature'; known: count scale bias x");
}

TEST(Fields, NearestPrefersTheCloserAndGivesUpFarAway) {
  const std::vector<std::string> names = {"hidden", "experts", "expert_count"};
  EXPECT_EQ(nearest("expert", names), "experts");
  EXPECT_EQ(nearest("hiden", names), "hidden");
  EXPECT_EQ(nearest("zzzzzz", names), "");
  EXPECT_EQ(nearest("", names), "");
}

TEST(Fields, SwitchesAreKnown) {
  Example example;
  for_each_field(example, [](const Field& f) { EXPECT_EQ(is_switch(f), f.name == "bias") << f.name; });
}

}  // namespace
}  // namespace sluice
