#include "text/deepseek/deepseek.h"

#include "base/json.h"
#include "harness/chat/deepseek.h"
#include "harness/chatml.h"

namespace sluice {
namespace {

using Model = DeepSeekModel;

constexpr Model kModels[] = {Model::kV3, Model::kR1, Model::kR1Opened, Model::kV31};

// Whether the prompt's tokens are those of `text`, which the template renders.
void expect_rendered(Model model, const Conversation& conversation, const std::string& text) {
  const DeepSeek& format = deepseek(model);
  const auto ids = format.prompt(conversation);
  ASSERT_TRUE(ids.ok()) << ids.status().message;
  EXPECT_EQ(format.tokenizer().decode(ids.value()), text);
  EXPECT_EQ(ids.value(), deepseek_ids(text));
}

Conversation talk(std::vector<Message> messages) { return {.options = {}, .messages = std::move(messages)}; }

const std::string kBegin = "<｜begin▁of▁sentence｜>", kEnd = "<｜end▁of▁sentence｜>";

TEST(DeepSeek, RendersAConversation) {
  Conversation c = talk({user_message("Hi"), text_message("Hello", Said::kFinal), user_message("2 + 2?")});
  c.options.developer_instructions = "Be brief.";
  const std::string plain =
      kBegin + "Be brief.<｜User｜>Hi<｜Assistant｜>Hello" + kEnd + "<｜User｜>2 + 2?<｜Assistant｜>";
  const std::string v31 =
      kBegin + "Be brief.<｜User｜>Hi<｜Assistant｜></think>Hello" + kEnd + "<｜User｜>2 + 2?<｜Assistant｜>";
  expect_rendered(Model::kV3, c, plain);
  expect_rendered(Model::kR1, c, plain);
  expect_rendered(Model::kR1Opened, c, plain + "<think>\n");
  expect_rendered(Model::kV31, c, v31 + "</think>");
  c.options.thinking = true;
  expect_rendered(Model::kV31, c, v31 + "<think>");
  expect_rendered(Model::kV3, c, plain);
  c.options.developer_instructions.clear();
  c.options.thinking = false;
  c.messages = {user_message("q")};
  expect_rendered(Model::kV31, c, kBegin + "<｜User｜>q<｜Assistant｜></think>");
}

TEST(DeepSeek, SystemMessagesStandAtTheFront) {
  Conversation c = talk({user_message("q"),
                         instruction_message("B"),
                         text_message("a", Said::kFinal),
                         {.role = ChatRole::kSystem, .content = "C"},
                         user_message("r")});
  const std::string turns = "<｜User｜>q<｜Assistant｜>a" + kEnd + "<｜User｜>r<｜Assistant｜>";
  expect_rendered(Model::kV3, c, kBegin + "B\n\nC" + turns);
  c.options.has_instructions = true;
  expect_rendered(Model::kV3, c, kBegin + "\n\nB\n\nC" + turns);
  c.options.developer_instructions = "A";
  expect_rendered(Model::kR1, c, kBegin + "A\n\nB\n\nC" + turns);
  c.end = PromptEnd::kOpenMessage;
  c.messages.push_back(instruction_message("D"));
  const auto open = deepseek(Model::kV3).prompt(c);
  EXPECT_EQ(open.status().code, Code::kInvalidArgument);
  EXPECT_NE(open.status().message.find("found a message of the developer"), std::string::npos);
}

TEST(DeepSeek, CallsAndResultsAreTurns) {
  const Conversation c =
      talk({user_message("q"), reasoning_message("old"), text_message("Wait.", Said::kBeforeCall),
            call_message("f", R"({"a": 1})"), call_message("g", ""), result_message("f", "1"),
            result_message("g", "2"), call_message("f", "{}"), result_message("f", "3")});
  const auto fenced = [](const std::string& name, const std::string& arguments) {
    return "<｜tool▁call▁begin｜>function<｜tool▁sep｜>" + name + "\n```json\n" + arguments +
           "\n```<｜tool▁call▁end｜>";
  };
  const std::string fences =
      kBegin + "<｜User｜>q<｜Assistant｜>Wait.<｜tool▁calls▁begin｜>" + fenced("f", R"({"a": 1})") + "\n" +
      fenced("g", "{}") + "<｜tool▁calls▁end｜>" + kEnd +
      "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>1<｜tool▁output▁end｜>\n<｜tool▁output▁begin｜>2<"
      "｜tool▁output▁end｜>"
      "<｜tool▁outputs▁end｜><｜tool▁calls▁begin｜>" +
      fenced("f", "{}") + "<｜tool▁calls▁end｜>" + kEnd +
      "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>3<｜tool▁output▁end｜><｜tool▁outputs▁end｜>";
  for (const Model model : {Model::kV3, Model::kR1, Model::kR1Opened}) expect_rendered(model, c, fences);
  const std::string bare =
      kBegin +
      "<｜User｜>q<｜Assistant｜></"
      "think>Wait.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜>"
      "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>" +
      kEnd +
      "<｜tool▁output▁begin｜>1<｜tool▁output▁end｜><｜tool▁output▁begin｜>2<｜tool▁output▁end｜>"
      "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>" +
      kEnd + "<｜tool▁output▁begin｜>3<｜tool▁output▁end｜>";
  expect_rendered(Model::kV31, c, bare);
  Conversation thinking = c;
  thinking.options.thinking = true;
  expect_rendered(Model::kV31, thinking, bare);
}

TEST(DeepSeek, AnAnswerToResultsBelongsToTheTurn) {
  const Conversation c = talk({user_message("q"), call_message("f", "{}"), result_message("f", "1"),
                               text_message("a", Said::kFinal), user_message("r")});
  const auto ids = deepseek(Model::kV3).prompt(c);
  ASSERT_TRUE(ids.ok());
  EXPECT_NE(deepseek_tokenizer()
                .decode(ids.value())
                .find("1<｜tool▁output▁end｜><｜tool▁outputs▁end｜>a" + kEnd + "<｜User｜>r<｜Assistant｜>"),
            std::string::npos);
  const auto bare = deepseek(Model::kV31).prompt(c);
  ASSERT_TRUE(bare.ok());
  EXPECT_NE(deepseek_tokenizer()
                .decode(bare.value())
                .find("1<｜tool▁output▁end｜>a" + kEnd + "<｜User｜>r<｜Assistant｜></think>"),
            std::string::npos);
}

TEST(DeepSeek, PromptsEndAsRequested) {
  Conversation c = talk({user_message("q"), text_message("a b", Said::kFinal)});
  const std::string head = kBegin + "<｜User｜>q<｜Assistant｜>";
  c.end = PromptEnd::kLastMessage;
  expect_rendered(Model::kV3, c, head + "a b" + kEnd);
  expect_rendered(Model::kR1Opened, c, head + "a b" + kEnd);
  expect_rendered(Model::kV31, c, head + "</think>a b" + kEnd);
  c.end = PromptEnd::kOpenMessage;
  expect_rendered(Model::kV3, c, head + "a b");
  expect_rendered(Model::kV31, c, head + "</think>a b");
  c.end = PromptEnd::kNextMessage;
  expect_rendered(Model::kV3, c, head + "a b" + kEnd + "<｜Assistant｜>");
  expect_rendered(Model::kV31, c, head + "</think>a b" + kEnd);
  c.messages = {user_message("q")};
  c.end = PromptEnd::kOpenMessage;
  for (const Model model : kModels) expect_rendered(model, c, kBegin + "<｜User｜>q");
  c.messages = {user_message("q"), call_message("f", "{}"), result_message("f", "r")};
  expect_rendered(Model::kV31, c,
                  head +
                      "</"
                      "think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜><"
                      "｜tool▁calls▁end｜>" +
                      kEnd + "<｜tool▁output▁begin｜>r");
  c.messages.clear();
  for (const Model model : kModels) EXPECT_FALSE(deepseek(model).prompt(c).ok());
}

TEST(DeepSeek, PromptsShowNoReasoning) {
  Conversation c = talk({user_message("q"), reasoning_message("hm"),
                         text_message("<think>x</think>y</think>z", Said::kFinal), user_message("r")});
  const std::string head = kBegin + "<｜User｜>q<｜Assistant｜>", tail = kEnd + "<｜User｜>r<｜Assistant｜>";
  expect_rendered(Model::kR1, c, head + "z" + tail);
  const std::string shown = deepseek_tokenizer().decode(deepseek(Model::kV31).prompt(c).value());
  EXPECT_EQ(shown, head + "</think>y</think>z" + tail + "</think>");
  EXPECT_EQ(deepseek_tokenizer().decode(deepseek(Model::kV3).prompt(c).value()),
            head + "<think>x</think>y</think>z" + tail);
  for (const Model model : kModels) {
    Conversation forgotten = c;
    deepseek(model).forget_old_reasoning(&forgotten.messages);
    EXPECT_EQ(forgotten.messages.size(), 3u);
    EXPECT_EQ(deepseek(model).prompt(forgotten).value(), deepseek(model).prompt(c).value());
  }
}

// Content of users, tools and functions never becomes a token of the frame, special or not.
TEST(DeepSeek, ContentMakesNoTokenOfTheFrame) {
  std::string all;
  for (const auto& token : DeepSeek::named_tokens()) all += token.text;
  const auto count = [](const DeepSeek& format, const std::string& text, bool with_tools) {
    Conversation c = talk({user_message(text), call_message("f", text), result_message("f", text),
                           text_message("b", Said::kFinal), user_message(text)});
    c.options.developer_instructions = text;
    if (with_tools)
      c.options.functions =
          format.functions_text({{.name = "f", .description = text, .parameters = Json{{"t", text}}.dump()}})
              .value();
    const auto ids = format.prompt(c);
    EXPECT_TRUE(ids.ok());
    return std::count_if(ids.value().begin(), ids.value().end(),
                         [&](int32_t id) { return format.is_frame(id); });
  };
  for (const Model model : kModels)
    for (const bool with_tools : {false, true})
      EXPECT_EQ(count(deepseek(model), all, with_tools), count(deepseek(model), "x", with_tools));
}

// The text that vLLM's templates render; tests/python/server/test_chat_templates.py compares with the
// templates themselves.
TEST(DeepSeek, DescribesFunctionsAsVllmDoes) {
  const std::vector<FunctionTool> tools = {{.name = "f",
                                            .description = "Does \"it\" – ä",
                                            .parameters = R"({"type":"object","a":[1,2.0,null,true]})"},
                                           {.name = "g"}};
  const std::string parameters = R"({"type": "object", "a": [1, 2.0, null, true]})";
  const std::string
      f = R"({"type": "function", "function": {"name": "f", "description": "Does \"it\" – ä", "parameters": )" +
          parameters + "}}",
      g = R"({"type": "function", "function": {"name": "g"}})";
  const std::pair<Model, std::string> cases[] = {
      {Model::kV3, "<tools>\n" + f + "\n" + g + "    \n</tools>\n\n\n\n    For function call returns"},
      {Model::kR1, "available:\n\n\n```json\n" + f + "\n```\n\n```json\n" + g + "\n```\n<｜User｜>"},
      {Model::kR1Opened, "available:\n\n\n```json\n" + f + "\n```\n\n```json\n" + g + "\n```\n<｜User｜>"},
      {Model::kV31, "tools:\n\n### f\nDescription: Does \"it\" – ä\n\nParameters: " + parameters +
                        "\n\n### g\nDescription: \n\nParameters: {}\n\nIMPORTANT: ALWAYS"}};
  for (const auto& [model, part] : cases) {
    const auto section = deepseek(model).functions_text(tools);
    ASSERT_TRUE(section.ok());
    Conversation c = talk({user_message("q")});
    c.options.developer_instructions = "S";
    c.options.functions = section.value();
    const auto ids = deepseek(model).prompt(c);
    ASSERT_TRUE(ids.ok());
    const std::string text = deepseek_tokenizer().decode(ids.value());
    EXPECT_TRUE(text.starts_with(kBegin + "S" + section.value() + "<｜User｜>q")) << text;
    EXPECT_NE(text.find(part), std::string::npos) << text;
    EXPECT_EQ(ids.value(), deepseek_ids(text));  // frame tokens in the section are encoded as tokens
    const auto bad = deepseek(model).functions_text({{.name = "h", .parameters = "[]"}});
    EXPECT_NE(bad.status().message.find("function h: wanted parameters that are a JSON object"),
              std::string::npos);
  }
}

TEST(DeepSeek, ARequiredCallBeginsWithoutReasoning) {
  const auto start = [](Model model, std::optional<bool> thinking) {
    return deepseek_tokenizer().decode(deepseek(model).call_start("f", thinking).value());
  };
  const std::string fenced = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n",
                    bare = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>";
  EXPECT_EQ(start(Model::kV3, {}), fenced);
  EXPECT_EQ(start(Model::kR1, {}), "<think>\n\n</think>\n\n" + fenced);
  EXPECT_EQ(start(Model::kR1Opened, {}), "\n</think>\n\n" + fenced);
  EXPECT_EQ(start(Model::kR1Opened, false), fenced);
  EXPECT_EQ(start(Model::kV31, {}), bare);
  EXPECT_EQ(start(Model::kV31, true), "</think>" + bare);
}

TEST(DeepSeek, ReasoningNeedsAQuestion) {
  const std::vector<Message> question = {user_message("q")},
                             system = {user_message("q"), instruction_message("s")},
                             results = {user_message("q"), call_message("f", "{}"), result_message("f", "r")},
                             none = {};
  const auto after = [](Model model, const std::vector<Message>& messages, std::optional<bool> thinking) {
    return deepseek(model).thinking_after(messages, thinking);
  };
  for (const auto& messages : {question, system}) {
    EXPECT_EQ(after(Model::kV31, messages, true), true);
    EXPECT_EQ(after(Model::kR1Opened, messages, {}), std::nullopt);
  }
  EXPECT_EQ(after(Model::kV31, results, true), false);
  EXPECT_EQ(after(Model::kV31, none, true), false);
  EXPECT_EQ(after(Model::kR1Opened, results, {}), false);
  EXPECT_EQ(after(Model::kR1, results, {}), std::nullopt);
}

TEST(DeepSeek, NamesTheTokenThatIsMissing) {
  const auto made = DeepSeek::from(qwen_tokenizer(), Model::kV3);
  EXPECT_EQ(made.status().code, Code::kUnsupported);
  EXPECT_NE(made.status().message.find("of deepseek-v3, found no <｜begin▁of▁sentence｜>"),
            std::string::npos);
}

Tokenizer without(const std::string& part) {
  Json document = read_json(SLUICE_SOURCE_DIR "/tests/data/tokenizer/pattern_deepseek.json", 1 << 20).value();
  Json& added = document["added_tokens"];
  for (size_t i = added.size(); i-- > 0;)
    if (added[i]["content"].get<std::string>().find(part) != std::string::npos) added.erase(i);
  return Tokenizer::parse(document.dump(), "t.json").value();
}

// Tokenizers of distilled models lack these tokens.
TEST(DeepSeek, R1NeedsTokensOfCallsOnlyForCalls) {
  const Tokenizer distilled = without("tool");
  EXPECT_FALSE(DeepSeek::from(distilled, Model::kV3).ok());
  EXPECT_FALSE(DeepSeek::from(distilled, Model::kV31).ok());
  const auto format = DeepSeek::from(distilled, Model::kR1Opened);
  ASSERT_TRUE(format.ok());
  EXPECT_EQ(distilled.decode(format.value().prompt(talk({user_message("q")})).value()),
            kBegin + "<｜User｜>q<｜Assistant｜><think>\n");
  EXPECT_EQ(format.value().functions_text({{.name = "f"}}).status().code, Code::kUnsupported);
  EXPECT_EQ(format.value().call_start("f", {}).status().code, Code::kUnsupported);
  EXPECT_FALSE(format.value().gate({.functions = {"f"}}, {}).ok());
  EXPECT_TRUE(format.value().gate({.held_text = true}, {}).ok());
  EXPECT_TRUE(format.value()
                  .prompt(talk({user_message("q"), call_message("f", "{}"), result_message("f", "r")}))
                  .ok());
}

std::string found_format(const Tokenizer& tokenizer, const std::string& chat_template) {
  const auto format = open_chat_format("auto", {.tokenizer = tokenizer,
                                                .chat_template = chat_template,
                                                .stop_tokens = deepseek(Model::kV3).stop_tokens()});
  EXPECT_TRUE(format.ok()) << format.status().message;
  return format.ok() ? std::string(format.value()->name()) : "";
}

TEST(DeepSeekFormats, AreToldByTheirTemplates) {
  for (const auto& [file, name] :
       {std::pair("deepseek-v3", "deepseek-v3"), std::pair("deepseek-v3-tools", "deepseek-v3"),
        std::pair("deepseek-r1", "deepseek-r1"), std::pair("deepseek-r1-0528", "deepseek-r1"),
        std::pair("deepseek-r1-tools", "deepseek-r1"), std::pair("deepseek-v3.1", "deepseek-v3.1"),
        std::pair("deepseek-v3.1-tools", "deepseek-v3.1")}) {
    EXPECT_EQ(found_format(deepseek_tokenizer(), template_file(file)), name) << file;
    // Another string, or text outside the tags, makes another template. A tokenizer without <think> also
    // changes the format, except for V3.
    EXPECT_EQ(found_format(deepseek_tokenizer(), template_file(file) + "{{ 'You are DeepSeek.' }}"), "none");
    EXPECT_EQ(found_format(deepseek_tokenizer(), "x" + template_file(file)), "none");
    const bool thinks = std::string(name) != "deepseek-v3";
    EXPECT_EQ(found_format(without("think"), template_file(file)), thinks ? "none" : name) << file;
  }
}

TEST(DeepSeekFormats, TheTemplateDeterminesWhoOpensTheReasoningOfR1) {
  const auto opened = [](const std::string& name, std::optional<std::string> chat_template) {
    const auto format = open_chat_format(
        name, {.tokenizer = deepseek_tokenizer(), .chat_template = std::move(chat_template)});
    EXPECT_TRUE(format.ok());
    const auto ids = format.value()->prompt(talk({user_message("q")}));
    return deepseek_tokenizer().decode(ids.value()).ends_with("<think>\n");
  };
  EXPECT_TRUE(opened("auto", template_file("deepseek-r1")));
  EXPECT_FALSE(opened("auto", template_file("deepseek-r1-0528")));
  EXPECT_FALSE(opened("deepseek-r1", template_file("deepseek-r1-tools")));
  EXPECT_TRUE(opened("deepseek-r1", {}));
  EXPECT_TRUE(opened("deepseek-r1", template_file("deepseek-v3")));
}

}  // namespace
}  // namespace sluice
