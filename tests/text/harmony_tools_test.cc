#include "text/harmony_tools.h"

#include <gtest/gtest.h>

#include "text/harmony.h"

namespace sluice {
namespace {

// The developer message's section for one function f with these parameters.
std::string shown(const std::string& parameters) {
  const auto section = functions_section({{.name = "f", .parameters = parameters}});
  EXPECT_TRUE(section.ok()) << section.status().message;
  const std::string before = "# Tools\n\n## functions\n\nnamespace functions {\n\ntype f = (_: ",
                    after = ") => any;\n\n} // namespace functions";
  const std::string& all = section.value();
  EXPECT_TRUE(all.starts_with(before) && all.ends_with(after)) << all;
  return all.substr(before.size(), all.size() - before.size() - after.size());
}

std::string property(const std::string& schema) {
  const std::string all = shown(R"({"type": "object", "properties": {"p": )" + schema + "}}");
  EXPECT_TRUE(all.starts_with("{\n") && all.ends_with("\n}")) << all;
  return all.substr(2, all.size() - 4);
}

}  // namespace

TEST(HarmonyTools, ASectionOfTheDeveloperMessage) {
  const std::vector<FunctionTool> tools = {
      {.name = "get_location", .description = "Gets the location of the user."},
      {.name = "get_weather",
       .description = "Gets the weather.\nOf one place.",
       .parameters = R"({"type": "object", "properties": {
         "location": {"type": "string", "description": "The city and state"},
         "format": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"}}, "required": ["location"]})"}};
  EXPECT_EQ(functions_section(tools).value(), R"(# Tools

## functions

namespace functions {

// Gets the location of the user.
type get_location = () => any;

// Gets the weather.
// Of one place.
type get_weather = (_: {
// The city and state
location: string,
format?: "celsius" | "fahrenheit", // default: celsius
}) => any;

} // namespace functions)");
}

TEST(HarmonyTools, TheSystemMessageSaysWhereCallsGo) {
  const auto tokenizer = Tokenizer::load(SLUICE_SOURCE_DIR "/tests/data/tokenizer/pattern_o200k.json");
  const Harmony h = Harmony::from(tokenizer.value()).value();
  Conversation c{
      .options = {.current_date = "2025-06-28", .developer_instructions = "Hurry.", .functions = "# Tools"},
      .messages = {}};
  const std::string text = h.tokenizer().decode(h.prompt(c).value());
  EXPECT_NE(
      text.find(
          "every message.\nCalls to these tools must go to the commentary channel: 'functions'.<|end|>"),
      std::string::npos);
  EXPECT_NE(text.find("developer<|message|># Instructions\n\nHurry.\n\n# Tools<|end|>"), std::string::npos);
  c.options.developer_instructions.clear();
  EXPECT_NE(h.tokenizer().decode(h.prompt(c).value()).find("developer<|message|># Tools<|end|>"),
            std::string::npos);
}

TEST(HarmonyTools, Types) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"type": "string"})", "p?: string,"},
      {R"({"type": "integer"})", "p?: number,"},
      {R"({"type": "boolean", "default": true})", "p?: boolean, // default: true"},
      {R"({"type": ["integer", "string"]})", "p?: number | string,"},
      {R"({"type": "array"})", "p?: Array<any>,"},
      {R"({"type": "array", "items": {"type": "number"}})", "p?: number[],"},
      {R"({"type": "null"})", "p?: any,"},
      {R"({})", "p?: any,"},
      {R"({"type": "string", "nullable": true, "default": "x"})", "p?: string | null, // default: \"x\""},
      {R"({"type": "string", "title": "T", "description": "D", "examples": ["a", 1, "b"]})",
       "// T\n//\n// D\n// Examples:\n// - \"a\"\n// - \"b\"\np?: string,"},
      {R"({"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "number"}}, "required": ["a"]})",
       "p?: {\n    b?: string,\n    a: number,\n    },"},
      {R"({"description": "D", "default": 20, "oneOf": [{"type": "string", "default": "s"}, {"type": "number", "description": "N"}]})",
       "// D\n// default: 20\np?:\n | string // default: \"s\"\n | number // N\n,"},
      {R"({"description": "D", "oneOf": [{"type": "string", "description": "D"}]})", "p?:\n | string\n,"},
      {R"({"type": "array", "items": {"oneOf": [{"type": "string"}, {"type": "boolean"}]}})",
       "p?: \n     | string\n     | boolean[],"},
  };
  for (const auto& [schema, text] : cases) EXPECT_EQ(property(schema), text) << schema;
}

TEST(HarmonyTools, MembersKeepTheirOrder) {
  EXPECT_EQ(shown(R"({"type": "object", "properties": {"z": {}, "a": {}, "m": {}}})"),
            "{\nz?: any,\na?: any,\nm?: any,\n}");
}

TEST(HarmonyTools, RefusesFunctionsThatCannotBeCalled) {
  const std::pair<FunctionTool, const char*> cases[] = {
      {{.name = ""}, "wanted a name of 1 to 64 letters"},
      {{.name = "a b"}, "found 'a b'"},
      {{.name = std::string(65, 'x')}, "wanted a name of 1 to 64 letters"},
      {{.name = "f", .parameters = "[1]"},
       "function f: wanted parameters that are a JSON object, found '[1]'"},
      {{.name = "f", .parameters = "{"},
       "function f: parameters: wanted JSON, found text that ends too early"}};
  for (const auto& [tool, text] : cases) {
    const auto section = functions_section({tool});
    ASSERT_FALSE(section.ok());
    EXPECT_NE(section.status().message.find(text), std::string::npos) << section.status().message;
  }
}

TEST(HarmonyTools, RecipientsNameFunctions) {
  EXPECT_EQ(function_recipient("f"), "functions.f");
  EXPECT_EQ(called_function("functions.f"), "f");
  EXPECT_EQ(called_function("python"), "");
  EXPECT_EQ(called_function(""), "");
}

}  // namespace sluice
