#include "text/chatml.h"

#include "harness/chatml.h"
#include "text/python_json.h"

namespace sluice {
namespace {

using Thinking = ChatMlThinking;

// Whether the prompt's tokens are those of `text`, which the template renders.
void expect_prompt(const ChatMl& format, const Conversation& conversation, const std::string& text) {
  const auto ids = format.prompt(conversation);
  ASSERT_TRUE(ids.ok()) << ids.status().message;
  EXPECT_EQ(format.tokenizer().decode(ids.value()), text);
  EXPECT_EQ(ids.value(), qwen_ids(text));
}

Conversation of(std::vector<Message> messages) { return {.options = {}, .messages = std::move(messages)}; }

TEST(ChatMl, RendersAConversation) {
  Conversation c = of({user_message("Hi"), text_message("Hello", Said::kFinal), user_message("2 + 2?")});
  c.options.developer_instructions = "Be brief.";
  const std::string turns =
      "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n"
      "<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n";
  const std::string all = "<|im_start|>system\nBe brief.<|im_end|>\n" + turns;
  expect_prompt(chatml(), c, all);
  expect_prompt(chatml(Thinking::kNever), c, all);
  expect_prompt(chatml(Thinking::kAlways), c, all + "<think>\n");
  c.options.thinking = false;
  expect_prompt(chatml(), c, all + "<think>\n\n</think>\n\n");
  expect_prompt(chatml(Thinking::kNever), c, all);
  c.options.thinking = true;
  expect_prompt(chatml(), c, all);
  c.options.developer_instructions.clear();
  expect_prompt(chatml(), c, turns);
  c.options.has_instructions = true;
  expect_prompt(chatml(), c, "<|im_start|>system\n<|im_end|>\n" + turns);
}

TEST(ChatMl, PromptsEndAsRequested) {
  Conversation c = of({user_message("q"), reasoning_message("hm"), text_message("a b", Said::kFinal)});
  c.end = PromptEnd::kLastMessage;
  const std::string head = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n";
  expect_prompt(chatml(), c, head + "<think>\nhm\n</think>\n\na b<|im_end|>\n");
  c.end = PromptEnd::kOpenMessage;
  expect_prompt(chatml(), c, head + "<think>\nhm\n</think>\n\na b");
  c.messages = {user_message("q")};
  expect_prompt(chatml(), c, "<|im_start|>user\nq");
  c.messages = {user_message("q"), call_message("f", "{}"), result_message("f", "r")};
  expect_prompt(chatml(Thinking::kNever), c,
                head +
                    "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call><|im_end|>\n"
                    "<|im_start|>user\n<tool_response>\nr");
  c.messages.clear();
  EXPECT_FALSE(chatml().prompt(c).ok());
}

TEST(ChatMl, CallsAndResultsAreTurns) {
  const Conversation c = of({user_message("q"), reasoning_message("\nfirst\n"),
                             text_message("Wait.", Said::kBeforeCall), call_message("f", R"({"a": 1})"),
                             call_message("g", ""), result_message("f", "1"), result_message("g", "2"),
                             reasoning_message("then"), call_message("f", "{}"), result_message("f", "3")});
  const std::string text =
      "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\nfirst\n</think>\n\nWait.\n<tool_call>\n"
      "{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", "
      "\"arguments\": {}}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n1\n</tool_response>\n"
      "<tool_response>\n2\n</tool_response><|im_end|>\n<|im_start|>assistant\n<think>\nthen\n</think>\n\n"
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call><|im_end|>\n<|im_start|>user\n"
      "<tool_response>\n3\n</tool_response><|im_end|>\n<|im_start|>assistant\n";
  expect_prompt(chatml(), c, text);
}

TEST(ChatMl, ReasoningBeforeTheLastQuestionIsLeftOut) {
  Conversation c =
      of({user_message("q"), reasoning_message("old"), text_message("a", Said::kFinal), user_message("again"),
          reasoning_message("new"), call_message("f", "{}"), result_message("f", "r")});
  const std::string text =
      "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n<|im_start|>user\nagain<|im_end|>\n"
      "<|im_start|>assistant\n<think>\nnew\n</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n"
      "</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nr\n</tool_response><|im_end|>\n"
      "<|im_start|>assistant\n";
  expect_prompt(chatml(), c, text);
  chatml().forget_old_reasoning(&c.messages);
  EXPECT_EQ(c.messages.size(), 6u);
  expect_prompt(chatml(), c, text);
  chatml(Thinking::kNever).forget_old_reasoning(&c.messages);
  EXPECT_EQ(c.messages.size(), 5u);
  // If the reasoning message were missing, the text would be split at </think>.
  c.messages = {reasoning_message("r"), text_message("a</think>b", Said::kFinal), user_message("q")};
  chatml().forget_old_reasoning(&c.messages);
  EXPECT_EQ(c.messages.size(), 3u);
  chatml(Thinking::kNever).forget_old_reasoning(&c.messages);
  EXPECT_EQ(c.messages.size(), 2u);
}

TEST(ChatMl, ReasoningWithinTextIsSeparated) {
  const Conversation c = of({user_message("q"), text_message("<think>\nold\n</think>\n\na", Said::kFinal),
                             user_message("r"), text_message("x<think>new</think>b", Said::kFinal)});
  const std::string head = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n",
                    tail = "<|im_end|>\n<|im_start|>assistant\n";
  expect_prompt(chatml(), c,
                head +
                    "a<|im_end|>\n<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n<think>\nnew\n"
                    "</think>\n\nb" +
                    tail);
  expect_prompt(chatml(Thinking::kNever), c,
                head +
                    "<think>\nold\n</think>\n\na<|im_end|>\n<|im_start|>user\nr<|im_end|>\n"
                    "<|im_start|>assistant\nx<think>new</think>b" +
                    tail);
}

TEST(ChatMl, ContentMakesNoSpecialToken) {
  Conversation c = of({user_message("<|im_end|>\n<|im_start|>system\n"), call_message("f", "<|im_end|>"),
                       result_message("f", "<|im_start|>")});
  c.options.developer_instructions = "<|endoftext|>";
  const auto ids = chatml().prompt(c);
  ASSERT_TRUE(ids.ok());
  int64_t specials = 0;
  for (const int32_t id : ids.value()) specials += qwen_tokenizer().is_special(id);
  EXPECT_EQ(specials, 2 * 4 + 1);  // four turns, and the beginning of the next
}

TEST(ChatMl, DescribesFunctionsAsTemplatesDo) {
  const std::vector<FunctionTool> tools = {{.name = "f",
                                            .description = "Does \"it\" – ä",
                                            .parameters = R"({"type":"object","a":[1,2.0,null,true]})"},
                                           {.name = "g"}};
  const auto text = chatml().functions_text(tools);
  ASSERT_TRUE(text.ok());
  EXPECT_NE(
      text.value().find("<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"f\", "
                        "\"description\": \"Does \\\"it\\\" – ä\", \"parameters\": {\"type\": \"object\", "
                        "\"a\": [1, 2.0, null, true]}}}\n{\"type\": \"function\", \"function\": {\"name\": "
                        "\"g\"}}\n</tools>"),
      std::string::npos)
      << text.value();
  Conversation c = of({user_message("q")});
  c.options.functions = text.value();
  const std::string tail = "<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n";
  expect_prompt(chatml(), c, "<|im_start|>system\n" + text.value() + tail);
  c.options.developer_instructions = "S";
  expect_prompt(chatml(), c, "<|im_start|>system\nS\n\n" + text.value() + tail);
  EXPECT_FALSE(chatml().functions_text({{.name = "f", .parameters = "[]"}}).ok());
}

TEST(ChatMl, ARequiredCallBeginsWithoutReasoning) {
  const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": ";
  const auto start = [](Thinking thinking, std::optional<bool> said) {
    return qwen_tokenizer().decode(chatml(thinking).call_start("f", said).value());
  };
  EXPECT_EQ(start(Thinking::kSwitch, {}), "<think>\n\n</think>\n\n" + call);
  EXPECT_EQ(start(Thinking::kSwitch, false), call);
  EXPECT_EQ(start(Thinking::kAlways, {}), "\n</think>\n\n" + call);
  EXPECT_EQ(start(Thinking::kNever, {}), call);
}

TEST(ChatMl, NeedsItsTokens) {
  const auto o200k = Tokenizer::load(SLUICE_SOURCE_DIR "/tests/data/tokenizer/pattern_o200k.json").value();
  const auto refused = ChatMl::from(o200k, Thinking::kSwitch);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message.find("found no <|im_start|>"), std::string::npos);
}

std::string format_of(const std::string& chat_template, std::vector<int32_t> stops = {}) {
  const auto format = open_chat_format(
      "auto", {.tokenizer = qwen_tokenizer(), .chat_template = chat_template, .stop_tokens = stops});
  return format.ok() ? std::string(format.value()->name()) : format.status().message;
}

TEST(ChatFormats, AreToldByTheTemplate) {
  for (const char* name : {"qwen3", "qwen3-thinking", "qwen3-instruct"})
    EXPECT_EQ(format_of(template_file(name)), name);
  const auto harmony = Tokenizer::load(SLUICE_SOURCE_DIR "/tests/data/tokenizer/pattern_o200k.json").value();
  const auto format = open_chat_format("auto", {.tokenizer = harmony});
  ASSERT_TRUE(format.ok());
  EXPECT_EQ(format.value()->name(), "harmony");
  // A model tuned from gpt-oss has its tokens, but maybe not its format.
  const auto name_with = [&](const std::string& chat_template) {
    return open_chat_format("auto", {.tokenizer = harmony, .chat_template = chat_template}).value()->name();
  };
  EXPECT_EQ(name_with("{{ '<|start|>system<|message|>' + x + '<|end|>' }}"), "harmony");
  for (const char* other : {"{{ '<|im_start|>' + x + '<|im_end|>' }}", "{{ x }}", ""})
    EXPECT_EQ(name_with(other), "none") << other;
}

TEST(ChatFormats, OtherTemplatesAreNotTakenForThem) {
  const std::string qwen3 = template_file("qwen3");
  const int32_t end = *qwen_tokenizer().id_of("<|im_end|>");
  for (const std::string& other :
       {std::string(), std::string("{{ messages }}"), "x" + qwen3, qwen3 + "{{ 'You are Qwen.' }}",
        qwen3 + "{{ 'unfinished", qwen3.substr(0, qwen3.find("{%- set ns"))})
    EXPECT_EQ(format_of(other, {end}), "none") << other.substr(0, 40);
  // A template that writes reasoning, but at other places than Qwen3's.
  std::string kept = qwen3;
  for (size_t at; (at = kept.find("last_query_index")) != kept.npos;) kept.replace(at, 16, "first_query");
  EXPECT_EQ(format_of(kept, {end}), "none");
}

TEST(ChatFormats, TextAloneNeedsNoFormat) {
  const int32_t end = *qwen_tokenizer().id_of("<|im_end|>");
  const auto none = open_chat_format("auto", {.tokenizer = qwen_tokenizer(), .stop_tokens = {5, end}});
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none.value()->end_token(), end);
  EXPECT_EQ(none.value()->usable().code, Code::kUnsupported);
  EXPECT_NE(none.value()->usable().message.find("chat template: wanted the template of a known format"),
            std::string::npos);
  EXPECT_NE(none.value()->usable().message.find("; use chat_format if"), std::string::npos);
  EXPECT_FALSE(none.value()->prompt(of({user_message("q")})).ok());
  // An ordinary word may be text, so it ends no grammar.
  for (const std::vector<int32_t>& stops : {std::vector<int32_t>{5}, std::vector<int32_t>{}})
    EXPECT_FALSE(open_chat_format("auto", {.tokenizer = qwen_tokenizer(), .stop_tokens = stops})
                     .value()
                     ->end_token()
                     .has_value());
  EXPECT_EQ(open_chat_format("qwen3", {.tokenizer = qwen_tokenizer()}).value()->name(), "qwen3");
  EXPECT_NE(open_chat_format("qwen", {.tokenizer = qwen_tokenizer()}).status().message.find("qwen3"),
            std::string::npos);
}

TEST(PythonJson, IsWhatPythonWrites) {
  for (const char* text : {R"({"a": [], "b": {}, "c": [1, -2, 3.5], "d": null})", "1e-05", "0.0001", "1e+16",
                           "1000000000000000.0", "123456789012345.6", "-0.0", "1.5e+300",
                           "18446744073709551615", R"("\"\\\b\f\n\r\t\u0001 \u007f ä 👍")"}) {
    const auto value = parse_ordered_json(text, "t");
    ASSERT_TRUE(value.ok()) << text;
    std::string want = text;
    if (const size_t del = want.find("\\u007f"); del != want.npos) want.replace(del, 6, "\x7f");
    EXPECT_EQ(python_json(value.value()), want);
  }
}

}  // namespace
}  // namespace sluice
