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

TEST(Json, RefusesTextThatIsNotJson) {
  EXPECT_EQ(error_of("{\"a\": }"), "a.json: wanted JSON, found an error at byte 7 of 7");
  EXPECT_EQ(error_of("{\"a\": \"\xff\"}"),
            "a.json: wanted JSON, found an error at byte 8 of 10, where it is not UTF-8");
  EXPECT_EQ(error_of("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
            "a.json: wanted JSON, found a git-lfs pointer (`git lfs pull` fetches the file)");
  EXPECT_EQ(error_of("\n<!DOCTYPE html><html></html>"), "a.json: wanted JSON, found an HTML or XML page");
  EXPECT_EQ(error_of(""), "a.json: wanted JSON, found an empty text");
  EXPECT_EQ(error_of("{"), "a.json: wanted JSON, found text that ends too early, after 1 byte");
  EXPECT_EQ(error_of("[1, \"a"), "a.json: wanted JSON, found text that ends too early, after 6 bytes");
  EXPECT_NE(error_of("\"\xff\"").find("byte 2"), std::string::npos);
  EXPECT_NE(error_of("[1e999]").find("too large for a double"), std::string::npos);
  EXPECT_NE(error_of("{\"a\": 1, \"b\": {\"a\": 2}, \"a\": 3}").find("\"a\" twice"), std::string::npos);
}

// The JSON library ends a text at a NUL and never reads what follows.
TEST(Json, RefusesANulByte) {
  using std::string_view_literals::operator""sv;
  EXPECT_EQ(error_of("{\"a\": 1}\0"sv), "a.json: wanted JSON, found a NUL byte at byte 9 of 9");
  EXPECT_EQ(error_of("{}\0{\"a\": }"sv), "a.json: wanted JSON, found a NUL byte at byte 3 of 10");
  EXPECT_EQ(error_of("[1,\0 2]"sv), "a.json: wanted JSON, found an error at byte 4 of 7");
  EXPECT_FALSE(parse_ordered_json("{} \0"sv, "a.json").ok());
  EXPECT_EQ(parse_json(R"("\u0000")", "a.json").value(), Json(std::string(1, '\0')));
}

TEST(Json, RefusesNestingWithoutEnd) {
  EXPECT_TRUE(parse_json(std::string(64, '[') + std::string(64, ']'), "a.json").ok());
  EXPECT_NE(error_of(std::string(65, '[') + std::string(65, ']')).find("64 levels"), std::string::npos);
  EXPECT_NE(error_of(std::string(1000000, '[')).find("64 levels"), std::string::npos);
}

// The JSON library's own builder takes more than two minutes: its time is quadratic in the objects of an
// array.
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

// The JSON library's own ordered objects take minutes: each key is compared with all earlier keys.
TEST(Json, OrderedObjectsTakeLinearTimeAndKeepTheirOrder) {
  std::string text = "{";
  for (int i = 300000; i-- > 0;)
    text += "\"k" + std::to_string(i) + "\":" + std::to_string(i) + (i ? "," : "}");
  const auto parsed = parse_ordered_json(text, "a.json");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message;
  EXPECT_EQ(parsed.value().size(), 300000u);
  EXPECT_EQ(parsed.value().begin().key(), "k299999");
  EXPECT_EQ(parsed.value().dump(), text);
}

TEST(Json, AMemberOfAnOrderedObjectAlone) {
  const char* text = R"({"a": {"b": [1, {"c": 2}]}, "b": {"z": 1, "a": {"y": [2], "b": 3}}, "c": 4})";
  EXPECT_EQ(parse_ordered_json(text, "a").value().dump(), OrderedJson::parse(text).dump());
  EXPECT_EQ(parse_ordered_json(text, "a", "b").value().dump(), R"({"z":1,"a":{"y":[2],"b":3}})");
  EXPECT_EQ(parse_ordered_json(text, "a", "c").value(), 4);
  EXPECT_TRUE(parse_ordered_json(text, "a", "z").value().is_null());
  EXPECT_TRUE(parse_ordered_json("[{\"b\": 1}]", "a", "b").value().is_null());
  EXPECT_NE(
      parse_ordered_json(R"({"a": {"b": 1, "c": 2, "b": 3}})", "a").status().message.find("\"b\" twice"),
      std::string::npos);
  EXPECT_FALSE(parse_ordered_json(std::string(65, '[') + std::string(65, ']'), "a").ok());
  EXPECT_FALSE(
      parse_ordered_json("{\"a\":" + std::string(64, '[') + std::string(64, ']') + "}", "a", "b").ok());
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
