#include "server/requests/request.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

constexpr ApiLimits kLimits{.vocab = 100, .max_choices = 8, .temperature_max = 2};

ApiRequest chat(const std::string& fields) {
  auto read = read_chat(
      R"({"messages": [{"role": "user", "content": "hi"}])" + (fields.empty() ? "" : ", " + fields) + "}",
      kLimits);
  EXPECT_TRUE(read.ok()) << read.error().message;
  return std::move(read).value();
}

ApiError refusal(const Result<ApiRequest, ApiError>& read) {
  if (!read.ok()) return read.error();
  ADD_FAILURE() << "it was accepted";
  return {};
}

ApiRequest messages(const std::string& list) {
  auto read = read_chat(R"({"messages": )" + list + "}", kLimits);
  EXPECT_TRUE(read.ok()) << read.error().message;
  return std::move(read).value();
}

}  // namespace

TEST(ApiRequest, MissingFieldsAreLeftToTheModel) {
  const ApiRequest r = chat("");
  EXPECT_EQ(r.kind, ApiKind::kChat);
  EXPECT_EQ(r.model, "");
  EXPECT_FALSE(r.sampling.temperature || r.sampling.top_p || r.sampling.min_p || r.sampling.top_k);
  EXPECT_FALSE(r.sampling.seed || r.sampling.max_tokens || r.effort || r.stream || r.include_usage);
  EXPECT_EQ(r.choices, 1);
  EXPECT_TRUE(r.stop.empty() && r.ignored.empty() && r.include_reasoning);
}

TEST(ApiRequest, EveryFieldArrives) {
  const ApiRequest r = chat(
      R"("model": "m", "temperature": 0.5, "top_p": 0.25, "min_p": 0.125, "top_k": 7, "seed": -1, "n": 3,
      "max_completion_tokens": 5, "stop": ["a", "b"], "stream": true, "stream_options": {"include_usage": true},
      "reasoning_effort": "low", "include_reasoning": false, "ignore_eos": true, "stop_token_ids": [9, 99], "user": "u",
      "repetition_penalty": 1.5, "frequency_penalty": -2, "presence_penalty": 0.75, "logit_bias": {"7": -100, "99": 2.5},
      "zeta": 1, "alpha": 2)");
  EXPECT_EQ(r.model, "m");
  EXPECT_EQ(r.sampling.temperature, 0.5);
  EXPECT_EQ(r.sampling.top_p, 0.25);
  EXPECT_EQ(r.sampling.min_p, 0.125);
  EXPECT_EQ(r.sampling.top_k, 7);
  EXPECT_EQ(r.sampling.seed, UINT64_MAX);
  EXPECT_EQ(r.sampling.max_tokens, 5);
  EXPECT_EQ(r.choices, 3);
  ASSERT_EQ(r.stop.size(), 2u);
  EXPECT_EQ(r.stop[0] + r.stop[1], "ab");
  EXPECT_TRUE(r.stream && r.include_usage && r.sampling.ignore_eos);
  EXPECT_EQ(r.effort, ReasoningEffort::kLow);
  EXPECT_FALSE(r.include_reasoning);
  EXPECT_EQ(r.sampling.stop_token_ids, (std::vector<int32_t>{9, 99}));
  EXPECT_EQ(r.sampling.repetition_penalty, 1.5);
  EXPECT_EQ(r.sampling.frequency_penalty, -2);
  EXPECT_EQ(r.sampling.presence_penalty, 0.75);
  EXPECT_EQ(r.sampling.logit_bias, (std::vector<std::pair<int32_t, float>>{{7, -100.f}, {99, 2.5f}}));
  EXPECT_EQ(r.ignored, (std::vector<std::string>{"alpha", "zeta"}));
}

TEST(ApiRequest, MessagesBecomeThoseOfTheChatFormat) {
  const ApiRequest r = messages(
      R"([{"role": "system", "content": "A"}, {"role": "developer", "content": [{"type": "text", "text": "B"}]},
      {"role": "user", "content": "q", "name": "ann"}, {"role": "assistant", "content": "a", "reasoning_content": "r"},
      {"role": "system", "content": "C"}, {"role": "user", "content": ""}])");
  EXPECT_EQ(r.conversation.instructions, "A\n\nB");
  const std::vector<Message> want{{.role = ChatRole::kUser, .content = "q"},
                                  {.role = ChatRole::kAssistant, .channel = "analysis", .content = "r"},
                                  {.role = ChatRole::kAssistant, .channel = "final", .content = "a"},
                                  {.role = ChatRole::kDeveloper, .content = "C"},
                                  {.role = ChatRole::kUser, .content = ""}};
  EXPECT_EQ(r.conversation.messages, want);
}

TEST(ApiRequest, PromptsOfEveryForm) {
  const auto prompts = [](const std::string& json) {
    const auto read = read_completion(R"({"prompt": )" + json + "}", kLimits);
    EXPECT_TRUE(read.ok()) << read.error().message;
    return read.value().prompts;
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(prompts(R"("a")"), std::vector<Prompt>{"a"});
  EXPECT_EQ(prompts(R"(["a", "b"])"), (std::vector<Prompt>{"a", "b"}));
  EXPECT_EQ(prompts("[0, 99]"), std::vector<Prompt>{(Ids{0, 99})});
  EXPECT_EQ(prompts(R"([[1], [2, 3], "c"])"), (std::vector<Prompt>{Ids{1}, Ids{2, 3}, "c"}));
}

TEST(ApiRequest, AnErrorNamesTheFieldWhatWasWantedAndWhatWasFound) {
  const ApiError e = refusal(read_completion(R"({"prompt": "a", "temperature": 3})", kLimits));
  EXPECT_EQ(e.status, 400);
  EXPECT_EQ(e.param, "temperature");
  EXPECT_EQ(e.message, "temperature: wanted a number from 0 to 2, found 3");
  EXPECT_EQ(refusal(read_completion(R"({"prompt": [[1], [1, 100]]})", kLimits)).message,
            "prompt[1][1]: wanted an integer from 0 to 99, found 100");
  EXPECT_EQ(refusal(read_completion(R"({"prompt": ["a", "b", "c"], "n": 3})", kLimits)).message,
            "n: wanted at most 8 answers, found 9");
  EXPECT_EQ(refusal(read_chat(R"({"messages": [{"role": "user", "content": [{"type": "audio"}]}]})", kLimits))
                .param,
            "messages[0].content[0].type");
  EXPECT_EQ(refusal(read_chat(R"({"messages": [7]})", kLimits)).param, "messages[0]");
  for (const char* bias : {R"({"100": 1})", R"({"-1": 1})", R"({"1x": 1})", R"({"": 1})",
                           R"({"5": 1, "05": 1})", R"({"5": "a"})", R"({"5": -100.5})"}) {
    const ApiError wrong =
        refusal(read_completion(R"({"prompt": "a", "logit_bias": )" + std::string(bias) + "}", kLimits));
    EXPECT_TRUE(wrong.param.starts_with("logit_bias.")) << wrong.message;
  }
  const ApiError nested = refusal(
      read_completion(R"({"prompt": "a", "stream": true, "stream_options": {"include_usage": 1}})", kLimits));
  EXPECT_EQ(nested.param, "stream_options.include_usage");
}

TEST(ApiRequest, UnsupportedFieldsHaveTheirNeutralValueOrAreRefused) {
  for (const char* neutral :
       {R"("tools": [])", R"("tools": null)", R"("min_tokens": 0.0)", R"("chat_template_kwargs": {})",
        R"("response_format": {"type": "text"})", R"("best_of": 1)", R"("n": 3, "best_of": 3)"})
    (void)chat(neutral);
  for (const char* asks : {R"("min_tokens": 1)", R"("best_of": 2)", R"("best_of": 3, "n": 2)"}) {
    const ApiError e = refusal(
        read_chat(R"({"messages": [{"role": "user", "content": ""}], )" + std::string(asks) + "}", kLimits));
    EXPECT_NE(e.message.find("not supported"), std::string::npos) << e.message;
    EXPECT_NE(std::string(asks).find("\"" + e.param + "\""), std::string::npos) << e.param;
  }
}

namespace {

const std::string kWeather =
    R"({"type": "function", "function": {"name": "weather", "description": "d", "parameters": {"z": 1, "a": {"y": 2, "b": 3}}}})";

// Reads a chat with these members.
ApiError chat_refusal(const std::string& fields) {
  return refusal(read_chat(R"({"messages": [{"role": "user", "content": ""}], )" + fields + "}", kLimits));
}

}  // namespace

TEST(ApiRequest, ToolsKeepTheOrderOfTheirSchemas) {
  const ApiRequest r =
      chat(R"("tools": [)" + kWeather + R"(, {"type": "function", "function": {"name": "f"}}])");
  ASSERT_EQ(r.tools.functions.size(), 2u);
  EXPECT_EQ(r.tools.functions[0].name, "weather");
  EXPECT_EQ(r.tools.functions[0].description, "d");
  EXPECT_EQ(r.tools.functions[0].parameters, R"({"z":1,"a":{"y":2,"b":3}})");
  EXPECT_EQ(r.tools.functions[0].arguments, R"({"type":"object","z":1,"a":{"y":2,"b":3}})");
  EXPECT_EQ(r.tools.functions[1].parameters + r.tools.functions[1].arguments, "");
  EXPECT_TRUE(r.tools.offered());
  EXPECT_EQ(r.tools.choice, ApiTools::Choice::kAuto);
}

TEST(ApiRequest, ArgumentsAreAnObject) {
  const auto arguments = [](const std::string& parameters) {
    return chat(R"("tools": [{"type": "function", "function": {"name": "f", "parameters": )" + parameters +
                "}}]")
        .tools.functions[0]
        .arguments;
  };
  EXPECT_EQ(arguments("{}"), R"({"type":"object"})");
  EXPECT_EQ(arguments(R"({"type": null})"), R"({"type":"object"})");
  EXPECT_EQ(arguments(R"({"$ref": "#/$defs/a"})"), R"({"type":"object","$ref":"#/$defs/a"})");
  EXPECT_EQ(arguments(R"({"z": 1, "type": "object"})"), R"({"z":1,"type":"object"})");
  EXPECT_EQ(arguments(R"({"type": ["null", "object"]})"), R"({"type":"object"})");
  const ApiError e = chat_refusal(
      R"("tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}])");
  EXPECT_EQ(e.param, "tools[0].function.parameters.type");
}

TEST(ApiRequest, KeptDataIsBounded) {
  const ApiRequest ids = chat(R"("stop_token_ids": [9, 9, 3, 9, 3])");
  EXPECT_EQ(ids.sampling.stop_token_ids, (std::vector<int32_t>{3, 9}));
  std::string list = "1";
  for (int i = 2; i <= 5000; ++i) list += "," + std::to_string(i);
  EXPECT_EQ(
      refusal(read_completion(R"({"prompt": "a", "stop_token_ids": [)" + list + "]}", {.vocab = 9999})).param,
      "stop_token_ids");
  std::string biases = R"("1":1)";
  for (int i = 2; i <= 10000; ++i) biases += ",\"" + std::to_string(i) + "\":1";
  const auto biased = [&](int n) {
    return read_completion(
        R"({"prompt": "a", "n": )" + std::to_string(n) + R"(, "logit_bias": {)" + biases + "}}",
        {.vocab = 99999, .max_choices = 128});
  };
  EXPECT_TRUE(biased(100).ok());
  EXPECT_EQ(refusal(biased(128)).param, "logit_bias");
  const std::string name(1000000, 'x');
  const auto call = [](const std::string& id, const std::string& function) {
    return R"({"messages": [{"role": "assistant", "tool_calls": [{"id": ")" + id +
           R"(", "function": {"name": ")" + function + R"(", "arguments": ""}}]}]})";
  };
  EXPECT_EQ(refusal(read_chat(call(name, "f"), kLimits)).param, "messages[0].tool_calls[0].id");
  EXPECT_EQ(refusal(read_chat(call("1", name), kLimits)).param, "messages[0].tool_calls[0].function.name");
  const ApiRequest unknown = chat("\"" + name + "\": 1");
  EXPECT_LT(unknown.ignored[0].size(), 100u);
  const ApiError bias = chat_refusal(R"("logit_bias": {")" + name + R"(": 1})");
  EXPECT_LT(bias.message.size() + bias.param.size(), 500u);
}

TEST(ApiRequest, EffortByEveryName) {
  for (const char* fields :
       {R"("reasoning_effort": "high")", R"("reasoning": {"effort": "high"})",
        R"("chat_template_kwargs": {"reasoning_effort": "high"})",
        R"("reasoning_effort": "high", "reasoning": {"effort": "high", "summary": "auto"})"}) {
    const ApiRequest r = chat(fields);
    EXPECT_EQ(r.effort, ReasoningEffort::kHigh) << fields;
    EXPECT_TRUE(r.ignored.empty());
  }
  EXPECT_EQ(chat_refusal(R"("reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"})")
                .param,
            "chat_template_kwargs.reasoning_effort");
  EXPECT_EQ(chat_refusal(R"("chat_template_kwargs": {"builtin_tools": ["python"]})").param,
            "chat_template_kwargs.builtin_tools");
  EXPECT_EQ(chat_refusal(R"("chat_template_kwargs": [])").param, "chat_template_kwargs");
  EXPECT_EQ(chat(R"("chat_template_kwargs": {"enable_thinking": false})").ignored,
            std::vector<std::string>{"chat_template_kwargs.enable_thinking"});
  for (const bool thinking : {false, true}) {
    const auto request =
        chat(R"("chat_template_kwargs": {"thinking": )" + std::string(thinking ? "true}" : "false}"));
    EXPECT_EQ(request.thinking, thinking);
    EXPECT_EQ(request.ignored, std::vector<std::string>{"chat_template_kwargs.thinking"});
  }
}

TEST(ApiRequest, WhetherItReasonsByEveryName) {
  const std::string yes = R"("enable_thinking": true)", no = R"("enable_thinking": false)";
  EXPECT_FALSE(chat(R"("enable_thinking": null)").thinking);
  EXPECT_EQ(chat(yes).thinking, true);
  EXPECT_EQ(chat(no).thinking, false);
  EXPECT_TRUE(chat(no).needs_thinking_switch && chat(no).ignored.empty());
  EXPECT_FALSE(chat(R"("chat_template_kwargs": {"thinking": true})").needs_thinking_switch);
  EXPECT_EQ(chat(no + R"(, "chat_template_kwargs": {"enable_thinking": false, "thinking": false})").thinking,
            false);
  const ApiError twice =
      chat_refusal(R"("chat_template_kwargs": {"enable_thinking": false, "thinking": true})");
  EXPECT_EQ(twice.param, "chat_template_kwargs.thinking");
  EXPECT_EQ(twice.message,
            "chat_template_kwargs.thinking: wanted false, which another field asks for, found true");
  EXPECT_EQ(chat_refusal(yes + R"(, "chat_template_kwargs": {"enable_thinking": false})").param,
            "chat_template_kwargs.enable_thinking");
  EXPECT_EQ(chat_refusal(R"("enable_thinking": "no")").param, "enable_thinking");
}

TEST(ApiRequest, UnknownFieldsOfNestedObjects) {
  const ApiRequest r = messages(
      R"([{"role": "user", "name": "ann", "content": [{"type": "text", "text": "a", "cache_control": {}}, {"type": "text", "text": "b", "cache_control": {}}]},
      {"role": "assistant", "refusal": null, "tool_calls": [{"id": "1", "index": 0, "function": {"name": "f", "arguments": "", "parsed": 1}}]},
      {"role": "tool", "tool_call_id": "1", "name": "f", "content": "c"}])");
  EXPECT_EQ(r.ignored,
            (std::vector<std::string>{"messages.content.cache_control", "messages.name",
                                      "messages.tool_calls.index", "messages.tool_calls.function.parsed"}));
  const ApiRequest more = chat(
      R"("tools": [{"type": "function", "cache_control": 1, "function": {"name": "f", "returns": {}}}], "stream": true,
      "tool_choice": {"type": "function", "function": {"name": "f", "x": 1}, "y": 2}, "stream_options": {"include_obfuscation": false},
      "response_format": {"type": "json_schema", "z": 1, "json_schema": {"name": "n", "schema": {}, "examples": []}})");
  EXPECT_EQ(more.ignored,
            (std::vector<std::string>{"response_format.z", "response_format.json_schema.examples",
                                      "tools.cache_control", "tools.function.returns", "tool_choice.y",
                                      "tool_choice.function.x", "stream_options.include_obfuscation"}));
  std::string many;
  for (int i = 0; i < 1000; ++i)
    many += R"({"role": "user", "content": "", "x)" + std::to_string(i) + R"(": 1},)";
  EXPECT_EQ(messages("[" + many + R"({"role": "user", "content": ""}])").ignored.size(), 64u);
}

TEST(ApiRequest, StructureUnderOtherNamesIsNotIgnored) {
  const std::string prompt = R"({"prompt": "a", )",
                    question = R"({"messages": [{"role": "user", "content": ""}], )";
  for (const char* fields :
       {R"("text": {"format": {"type": "json_schema", "schema": {}}})",
        R"("extra_body": {"guided_json": {}})", R"("guided_decoding": {"json": {}})",
        R"("output_config": {"format": {}})", R"("nvext": {"guided_json": {}})", R"("format": "json")",
        R"("output_format": {"type": "json_schema"})", R"("response_schema": {})",
        R"("lora": [{"id": 0, "scale": 1}])", R"("thinking_budget": 9)"}) {
    for (const auto& read :
         {read_chat(question + fields + "}", kLimits), read_completion(prompt + fields + "}", kLimits)}) {
      const ApiError e = refusal(read);
      EXPECT_TRUE(std::string(fields).starts_with("\"" + e.param + "\"")) << e.message;
      EXPECT_NE(e.message.find("not supported"), std::string::npos) << e.message;
    }
  }
  for (const char* fields : {R"("tools": [{"type": "function"}])", R"("tool_choice": "required")",
                             R"("top_logprobs": 3)", R"("enable_thinking": false)"})
    EXPECT_TRUE(std::string(fields).starts_with(
        "\"" + refusal(read_completion(prompt + fields + "}", kLimits)).param + "\""));
  const std::string off =
      R"("extra_body": {}, "format": "", "lora": [], "nvext": {}, "output_config": {}, "text": {"format": {"type": "text"}}, "tools": [], "tool_choice": "none"})";
  EXPECT_TRUE(read_chat(question + off, kLimits).ok() && read_completion(prompt + off, kLimits).ok());
}

TEST(ApiRequest, HowAPromptToBeCountedEnds) {
  const auto end = [](const std::string& fields) {
    const auto read = read_tokenize(
        R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}])" + fields +
            "}",
        kLimits);
    EXPECT_TRUE(read.ok());
    return read.value().chat.end;
  };
  EXPECT_EQ(end(""), PromptEnd::kNextMessage);
  EXPECT_EQ(end(R"(, "add_generation_prompt": false)"), PromptEnd::kLastMessage);
  EXPECT_EQ(end(R"(, "continue_final_message": true)"), PromptEnd::kOpenMessage);
  EXPECT_EQ(end(R"(, "continue_final_message": true, "add_generation_prompt": false)"),
            PromptEnd::kOpenMessage);
  const auto both = read_tokenize(
      R"({"messages": [{"role": "user", "content": "q"}], "continue_final_message": true, "add_generation_prompt": true})",
      kLimits);
  EXPECT_EQ(both.error().param, "add_generation_prompt");
}

// The defaults are vLLM's: a chat format has its own special tokens, a plain text has none.
TEST(ApiRequest, WhetherSpecialTokensAreAdded) {
  const auto completion = [](const std::string& fields) {
    return read_completion(R"({"prompt": "q")" + fields + "}", kLimits).value();
  };
  const auto counted = [](const std::string& fields) {
    return read_tokenize("{" + fields + "}", kLimits).value();
  };
  const std::string no = R"(, "add_special_tokens": false)", yes = R"(, "add_special_tokens": true)",
                    messages = R"("messages": [{"role": "user", "content": "q"}])";
  EXPECT_TRUE(completion("").add_special_tokens);
  EXPECT_TRUE(completion(R"(, "add_special_tokens": null)").add_special_tokens);
  EXPECT_FALSE(completion(no).add_special_tokens);
  EXPECT_TRUE(completion(no).ignored.empty());
  EXPECT_FALSE(chat(R"("n": 1)").add_special_tokens);
  EXPECT_TRUE(chat(R"("add_special_tokens": true)").add_special_tokens);
  EXPECT_TRUE(chat(R"("add_special_tokens": true)").ignored.empty());
  EXPECT_TRUE(counted(R"("prompt": "q")").add_special_tokens);
  EXPECT_FALSE(counted(R"("prompt": "q")" + no).add_special_tokens);
  EXPECT_FALSE(counted(messages).chat.add_special_tokens);
  EXPECT_TRUE(counted(messages + yes).chat.add_special_tokens);
  EXPECT_EQ(chat_refusal(R"("add_special_tokens": 1)").param, "add_special_tokens");
}

TEST(ApiRequest, APrefixToContinue) {
  const auto read = [](const std::string& first, const std::string& last, const std::string& fields = "") {
    return read_tokenize(R"({"messages": [{"content": "q", )" + first + R"(}, {"content": "It is", )" + last +
                             "}]" + fields + "}",
                         kLimits);
  };
  const std::string user = R"("role": "user")", assistant = R"("role": "assistant")",
                    prefix = R"(, "prefix": true)";
  EXPECT_EQ(read(user, assistant + prefix).value().chat.end, PromptEnd::kOpenMessage);
  EXPECT_EQ(read(user, assistant + prefix, R"(, "continue_final_message": true)").value().chat.end,
            PromptEnd::kOpenMessage);
  EXPECT_EQ(read(user, assistant + R"(, "prefix": false)").value().chat.end, PromptEnd::kNextMessage);
  EXPECT_EQ(read(user, assistant + prefix, R"(, "continue_final_message": false)").error().param,
            "continue_final_message");
  EXPECT_EQ(read(user, assistant + prefix, R"(, "add_generation_prompt": true)").error().param,
            "add_generation_prompt");
  EXPECT_EQ(read(user, user + prefix).error().message,
            "messages[1].prefix: wanted false or null outside an assistant's last message, found true");
  EXPECT_EQ(read(assistant + prefix, user).error().param, "messages[0].prefix");
  EXPECT_EQ(read(user, assistant + R"(, "prefix": 1)").error().param, "messages[1].prefix");
}

TEST(ApiRequest, AChatThatContinuesAMessage) {
  const auto read = [](const std::string& last, const std::string& fields) {
    return read_chat(R"({"messages": [{"role": "user", "content": "q"}, )" + last + "]" + fields + "}",
                     kLimits);
  };
  const std::string
      said = R"({"role": "assistant", "content": "It is"})",
      prefix = R"({"role": "assistant", "content": "It is", "prefix": true})",
      asked = R"({"role": "user", "content": "r"})",
      calls =
          R"({"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": ""}}]})",
      open = R"(, "continue_final_message": true)",
      tools = R"(, "tools": [{"type": "function", "function": {"name": "f"}}])";
  EXPECT_EQ(read(said, "").value().end, PromptEnd::kNextMessage);
  EXPECT_EQ(read(said, open + tools).value().end, PromptEnd::kOpenMessage);
  EXPECT_EQ(read(said, open + R"(, "add_generation_prompt": false)").value().end, PromptEnd::kOpenMessage);
  EXPECT_EQ(read(prefix, R"(, "response_format": {"type": "text"})").value().end, PromptEnd::kOpenMessage);
  const auto refused = [&](const std::string& last, const std::string& fields) {
    return refusal(read(last, fields)).message;
  };
  EXPECT_EQ(refused(said, R"(, "add_generation_prompt": false)"),
            "add_generation_prompt: wanted true or null unless continue_final_message is true, found false");
  EXPECT_EQ(refused(said, open + R"(, "add_generation_prompt": true)"),
            "add_generation_prompt: wanted false or null when continue_final_message is true, found true");
  for (const std::string& last : {asked, calls})
    EXPECT_EQ(refused(last, open),
              "continue_final_message: wanted false or null unless the last message is a text of the "
              "assistant, found true");
  EXPECT_EQ(refused(prefix, R"(, "response_format": {"type": "json_object"})"),
            "response_format: wanted null when messages[1].prefix is true, because a structure describes a "
            "whole answer");
  EXPECT_EQ(
      refused(said, open + R"(, "regex": "a")"),
      "regex: wanted null when continue_final_message is true, because a structure describes a whole answer");
  EXPECT_EQ(refused(said, open + tools + R"(, "tool_choice": "required")"),
            R"(tool_choice: wanted "auto" or "none" when continue_final_message is true, found "required")");
}

TEST(ApiRequest, ABodyThatIsNotAnObject) {
  for (const auto& [body, message] : std::vector<std::pair<const char*, const char*>>{
           {"[]", "body: wanted an object, found an array of 0"},
           {"7", "body: wanted an object, found 7"},
           {"{", "body: wanted JSON, found text that ends too early, after 1 byte"},
           {"", "body: wanted JSON, found an empty text"}}) {
    const ApiError e = refusal(read_chat(body, kLimits));
    EXPECT_EQ(e.message, message);
    EXPECT_EQ(e.param, "");
  }
}

TEST(ApiRequest, ChoicesOfTools) {
  const std::string tools = R"("tools": [)" + kWeather + R"(], "tool_choice": )";
  EXPECT_FALSE(chat(tools + R"("none")").tools.offered());
  const ApiRequest named = chat(tools + R"({"type": "function", "function": {"name": "weather"}})");
  EXPECT_EQ(named.tools.choice, ApiTools::Choice::kNamed);
  EXPECT_EQ(named.tools.named, "weather");
  EXPECT_EQ(chat(tools + R"("required")").tools.choice, ApiTools::Choice::kRequired);
  const std::pair<std::string, const char*> wrong[] = {
      {tools + R"("any")", "tool_choice"},
      {tools + R"({"type": "function", "function": {"name": "f"}})", "tool_choice.function.name"},
      {tools + R"({"type": "custom"})", "tool_choice.type"},
      {R"("tool_choice": "required")", "tool_choice"},
      {R"("tools": [{}])", "tools[0].type"},
      {R"("tools": [{"type": "web_search"}])", "tools[0].type"},
      {R"("tools": [{"type": "function", "function": {"name": "a b"}}])", "tools[0].function.name"},
      {R"("tools": [{"type": "function", "function": {"name": "f", "parameters": [1]}}])",
       "tools[0].function.parameters"},
      {R"("tools": [)" + kWeather + ", " + kWeather + "]", "tools[1].function.name"}};
  for (const auto& [fields, param] : wrong) {
    const ApiError e = chat_refusal(fields);
    EXPECT_EQ(e.param, param) << e.message;
    EXPECT_NE(e.message.find("wanted"), std::string::npos) << e.message;
  }
}

TEST(ApiRequest, CallsAndTheirResultsBecomeMessages) {
  const ApiRequest r = messages(R"([{"role": "user", "content": "q"},
      {"role": "assistant", "content": "Wait.", "reasoning": "r", "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        {"id": "2", "type": "function", "function": {"name": "g", "arguments": "[]"}}]},
      {"role": "tool", "tool_call_id": "2", "content": "G"},
      {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "F"}]}])");
  const auto call = [](const char* name, const char* arguments) {
    return Message{.role = ChatRole::kAssistant,
                   .channel = "commentary",
                   .recipient = name,
                   .content_type = "json",
                   .content = arguments};
  };
  const auto result = [](const char* name, const char* content) {
    return Message{.role = ChatRole::kTool,
                   .name = name,
                   .channel = "commentary",
                   .recipient = "assistant",
                   .content = content};
  };
  const std::vector<Message> want{{.role = ChatRole::kUser, .content = "q"},
                                  {.role = ChatRole::kAssistant, .channel = "analysis", .content = "r"},
                                  {.role = ChatRole::kAssistant, .channel = "commentary", .content = "Wait."},
                                  call("functions.f", "{}"),
                                  call("functions.g", "[]"),
                                  result("functions.g", "G"),
                                  result("functions.f", "F")};
  EXPECT_EQ(r.conversation.messages, want);
  for (const auto& [list, param] : std::vector<std::pair<const char*, const char*>>{
           {R"([{"role": "tool", "tool_call_id": "9", "content": ""}])", "messages[0].tool_call_id"},
           {R"([{"role": "tool", "content": ""}])", "messages[0].tool_call_id"},
           {R"([{"role": "assistant"}])", "messages[0].content"},
           {R"([{"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f"}}]}])",
            "messages[0].tool_calls[0].function.arguments"},
           {R"([{"role": "user", "content": "", "tool_calls": [{}]}])", "messages[0].tool_calls"}}) {
    const ApiError e = refusal(read_chat(R"({"messages": )" + std::string(list) + "}", kLimits));
    EXPECT_EQ(e.param, param) << e.message;
  }
}

TEST(ApiRequest, LogprobsOfChatsAndCompletions) {
  EXPECT_FALSE(chat(R"("logprobs": false)").sampling.logprobs);
  EXPECT_EQ(chat(R"("logprobs": true)").sampling.logprobs, 0);
  EXPECT_EQ(chat(R"("logprobs": true, "top_logprobs": 20)").sampling.logprobs, 20);
  EXPECT_EQ(chat_refusal(R"("logprobs": true, "top_logprobs": 21)").param, "top_logprobs");
  EXPECT_EQ(chat_refusal(R"("top_logprobs": 2)").param, "top_logprobs");
  const auto completion = [](const std::string& fields) {
    return read_completion(R"({"prompt": "a", )" + fields + "}", kLimits);
  };
  EXPECT_EQ(completion(R"("logprobs": 5)").value().sampling.logprobs, 5);
  EXPECT_EQ(refusal(completion(R"("logprobs": true)")).param, "logprobs");
  const auto echoed = completion(R"("logprobs": 1, "echo": true, "max_tokens": 0)").value();
  EXPECT_EQ(echoed.sampling.logprobs, 1);
  EXPECT_EQ(echoed.sampling.max_tokens, 0);
  EXPECT_EQ(refusal(completion(R"("max_tokens": 0)")).param, "max_tokens");
  EXPECT_EQ(refusal(completion(R"("max_tokens": -1, "echo": true)")).param, "max_tokens");
  EXPECT_EQ(chat_refusal(R"("max_tokens": 0)").param, "max_tokens");
}

}  // namespace sluice
