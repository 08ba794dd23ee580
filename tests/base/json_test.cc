#include "base/json.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

std::string error_of(std::string_view text) {
  const auto parsed = parse_json(text, "a.json");
  EXPECT_FALSE(parsed.ok()) << text;
  EXPECT_EQ(parsed.status().code, Code::kCorrupt);
  return parsed.status().message;
}

TEST(Json, RefusesWhatIsNoJson) {
  EXPECT_EQ(error_of("{\"a\": }"), "a.json: wanted JSON, found an error at byte 7 of 7");
  EXPECT_NE(error_of("").find("a.json"), std::string::npos);
  EXPECT_NE(error_of("\"\xff\"").find("byte 2"), std::string::npos);
  EXPECT_NE(error_of("[1e999]").find("no double"), std::string::npos);
  EXPECT_NE(error_of("{\"a\": 1, \"b\": {\"a\": 2}, \"a\": 3}").find("\"a\" twice"), std::string::npos);
}

TEST(Json, RefusesNestingWithoutEnd) {
  EXPECT_TRUE(parse_json(std::string(64, '[') + std::string(64, ']'), "a.json").ok());
  EXPECT_NE(error_of(std::string(65, '[') + std::string(65, ']')).find("64 levels"), std::string::npos);
  EXPECT_NE(error_of(std::string(1000000, '[')).find("64 levels"), std::string::npos);
}

// The library's own builder needs more than two minutes for this: it is quadratic in the objects of an array.
TEST(Json, ObjectsInAnArrayTakeLinearTime) {
  std::string text = "[{}";
  for (int i = 1; i < 1000000; ++i) text += ",{}";
  const auto parsed = parse_json(text + "]", "a.json");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed.value().size(), 1000000u);
}

TEST(Json, BuildsWhatTheLibraryBuilds) {
  const char* text =
      R"( {"a": [1, -2, 3.5, "x", [], {}, [[{"b": null}]], true], "c": {"d": {"e": 1e3}}, "": ""} )";
  const auto parsed = parse_json(text, "a.json");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message;
  EXPECT_EQ(parsed.value(), Json::parse(text));
  EXPECT_EQ(parse_json("17", "a.json").value(), Json(17));
}

TEST(Json, ReadersNameThePlaceTheWantedAndTheFound) {
  const auto parsed =
      parse_json(R"({"a": {"b": [1, -2, 3.5, "x"]}, "n": null, "big": 18446744073709551615})", "c.json");
  ASSERT_TRUE(parsed.ok());
  const JsonAt root(parsed.value(), "c.json");
  EXPECT_EQ(root.integer("z", 0, 9).status().message, "c.json: z: wanted a value, found no such key");
  const auto b = root.at("a").value().at("b");
  ASSERT_TRUE(b.ok());
  const auto items = b.value().items();
  ASSERT_TRUE(items.ok());
  EXPECT_EQ(items.value()[0].integer(0, 9).value(), 1);
  EXPECT_EQ(items.value()[1].integer(0, 9).status().message,
            "c.json: a.b[1]: wanted an integer from 0 to 9, found -2");
  EXPECT_EQ(items.value()[2].integer(0, 9).status().message,
            "c.json: a.b[2]: wanted an integer from 0 to 9, found 3.5");
  EXPECT_EQ(items.value()[3].number().status().message, "c.json: a.b[3]: wanted a number, found \"x\"");
  EXPECT_EQ(root.string("a").status().message, "c.json: a: wanted a string, found an object");
  EXPECT_FALSE(root.integer("big", 0, INT64_MAX).ok());
  EXPECT_EQ(root.integer("n", 0, 9, 7).value(), 7);
  EXPECT_TRUE(root.boolean("n", true).value());
}

}  // namespace
}  // namespace sluice
