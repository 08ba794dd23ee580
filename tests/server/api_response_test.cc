#include <gtest/gtest.h>

#include "base/json.h"
#include "server/answers/answer.h"
#include "server/response_store.h"
#include "text/harmony.h"

namespace sluice {
namespace {

constexpr ApiLimits kLimits{.vocab = 100, .max_choices = 8, .temperature_max = 2};

const Harmony& harmony() {
  static const Harmony h =
      Harmony::from(Tokenizer::load(SLUICE_SOURCE_DIR "/models/sluice-16e-tiny/tokenizer.json").value())
          .value();
  return h;
}

std::shared_ptr<const StoredResponse> earlier(const std::string& id) {
  if (id != "resp_1") return {};
  StoredResponse out;
  out.conversation = {
      .instructions = "I", .messages = {{.content = "first"}}, .function_of = {{"call_1", "f"}}};
  return std::make_shared<StoredResponse>(out);
}

ApiRequest request(const std::string& fields) {
  auto read = read_response("{" + fields + "}", kLimits, earlier);
  EXPECT_TRUE(read.ok()) << read.error().message;
  return std::move(read).value();
}

ApiError refusal(const std::string& fields) {
  auto read = read_response("{" + fields + "}", kLimits, earlier);
  if (!read.ok()) return read.error();
  ADD_FAILURE() << "it was accepted: " << fields;
  return {};
}

std::unique_ptr<Answer> answer_to(const ApiRequest& request) {
  return Answer::make(harmony(), request, {.id = "7", .created = 11, .model = "m", .unique = "u"},
                      {{1, 2, 3}}, {});
}

std::string push_all(Answer* answer, const std::string& said, FinishReason finish = FinishReason::kStop) {
  std::vector<int32_t> ids;
  EXPECT_TRUE(harmony().tokenizer().encode(said, Specials::kParse, &ids).ok());
  std::string out;
  for (size_t i = 0; i < ids.size(); ++i)
    answer->push(0, {.id = ids[i], .finish = i + 1 == ids.size() ? finish : FinishReason::kNone}, &out);
  return out;
}

// Checks the frame of each event and the sequence numbers.
std::vector<Json> events_in(const std::string& text) {
  std::vector<Json> out;
  for (size_t at = 0; at < text.size();) {
    const size_t data = text.find("\ndata: ", at), end = text.find("\n\n", at);
    out.push_back(Json::parse(text.substr(data + 7, end - data - 7)));
    EXPECT_EQ(text.substr(at, data - at), "event: " + out.back()["type"].get<std::string>());
    EXPECT_EQ(out.back()["sequence_number"], out.size() - 1);
    at = end + 2;
  }
  return out;
}

const std::string kSaid =
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>685<|return|>";
const std::string kCalls =
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
    "<|constrain|>json<|message|>{}<|call|>";
const std::string kTools = R"("tools": [{"type": "function", "name": "f", "parameters": {"b": 1, "a": 2}}])";

}  // namespace

TEST(ApiResponse, ATextIsAQuestion) {
  const ApiRequest r = request(R"("input": "q", "instructions": "Be brief.", "max_output_tokens": 5)");
  EXPECT_EQ(r.kind, ApiKind::kResponse);
  EXPECT_EQ(r.conversation.messages, std::vector<Message>{{.content = "q"}});
  EXPECT_EQ(r.response.instructions, "Be brief.");
  EXPECT_EQ(r.sampling.max_tokens, 5);
  EXPECT_TRUE(r.response.store && r.ignored.empty());
}

TEST(ApiResponse, ItemsOfEveryKind) {
  const ApiRequest r = request(kTools + R"(, "reasoning": {"effort": "high"}, "input": [
      {"role": "developer", "content": "D"},
      {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}]},
      {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "r"}]},
      {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "c", "output": "o"},
      {"role": "assistant", "content": [{"type": "output_text", "text": "a"}]}])");
  EXPECT_EQ(r.effort, ReasoningEffort::kHigh);
  EXPECT_EQ(r.tools.functions[0].parameters, R"({"b":1,"a":2})");
  EXPECT_EQ(r.conversation.instructions, "D");
  ASSERT_EQ(r.conversation.messages.size(), 5u);
  EXPECT_EQ(r.conversation.messages[1].channel, "analysis");
  EXPECT_EQ(r.conversation.messages[2].recipient, "functions.f");
  EXPECT_EQ(r.conversation.messages[3].name, "functions.f");
  EXPECT_EQ(r.conversation.messages[4].channel, "final");
}

TEST(ApiResponse, ContinuesAnEarlierResponse) {
  const ApiRequest r = request(
      R"("previous_response_id": "resp_1", "input": [{"type": "function_call_output", "call_id": "call_1", "output": "o"}])");
  EXPECT_EQ(r.conversation.instructions, "I");
  ASSERT_EQ(r.conversation.messages.size(), 2u);
  EXPECT_EQ(r.conversation.messages[0].content, "first");
  EXPECT_EQ(r.conversation.messages[1].name, "functions.f");
  EXPECT_EQ(refusal(R"("previous_response_id": "resp_2", "input": "q")").param, "previous_response_id");
}

TEST(ApiResponse, RefusesByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("input": [])", "input"},
      {R"("model": "m")", "input"},
      {R"("input": 5)", "input"},
      {R"("input": [{"type": "item_reference", "id": "x"}])", "input[0].type"},
      {R"("input": [{"role": "tool", "content": ""}])", "input[0].role"},
      {R"("input": [{"type": "function_call_output", "call_id": "x", "output": ""}])", "input[0].call_id"},
      {R"("input": [{"role": "user", "content": [{"type": "input_image"}]}])", "input[0].content[0].type"},
      {R"("input": "q", "background": true)", "background"},
      {R"("input": "q", "truncation": "auto")", "truncation"},
      {R"("input": "q", "n": 2)", "n"},
      {R"("input": "q", "include": ["file_search_call.results"])", "include[0]"},
      {R"("input": "q", "text": {"verbosity": "low"})", "text.verbosity"},
      {R"("input": "q", "reasoning": {"effort": "most"})", "reasoning.effort"},
      {R"("input": "q", "tools": [{"type": "web_serch"}])", "tools[0].type"},
      {R"("input": "q", "tools": [{"type": "web_search"}], "tool_choice": "required")", "tool_choice"},
      {R"("input": "q", "tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"})",
       "tool_choice.type"},
      {R"("input": "q", "metadata": [])", "metadata"},
      {R"("input": "q", "metadata": {"a": 1})", "metadata.a"}};
  for (const auto& [fields, param] : cases) {
    const ApiError e = refusal(fields);
    EXPECT_EQ(e.param, param) << e.message;
  }
  EXPECT_NE(refusal(R"("input": "q", "top_logprobs": 5)")
                .message.find("wanted 0 or null unless include has "
                              "\"message.output_text.logprobs\", found 5"),
            std::string::npos);
}

// The fields of chats that a list or a number is wrong for.
TEST(ApiResponse, ErrorsOfChatsTellWhatWasFound) {
  const std::pair<std::string, const char*> cases[] = {
      {R"("stop": )" + Json(std::vector<std::string>(65, "a")).dump(),
       "stop: wanted at most 64 strings, found 65"},
      {R"("top_logprobs": 2)", "top_logprobs: wanted 0 or null unless logprobs is true, found 2"}};
  for (const auto& [fields, said] : cases) {
    const auto read =
        read_chat(R"({"messages": [{"role": "user", "content": "q"}], )" + fields + "}", kLimits);
    ASSERT_FALSE(read.ok()) << fields;
    EXPECT_NE(read.error().message.find(said), std::string::npos) << read.error().message;
  }
}

TEST(ApiResponse, NoMessageIsContinued) {
  const auto said = [](const std::string& prefix) {
    return R"("input": [{"role": "assistant", "content": "It is", "prefix": )" + prefix + "}]";
  };
  EXPECT_EQ(
      refusal(said("true")).message,
      "input[0].prefix: wanted false or null, because a response does not continue a message, found true");
  EXPECT_EQ(request(said("false")).end, PromptEnd::kNextMessage);
  EXPECT_EQ(refusal(R"("input": "q", "continue_final_message": true)").param, "continue_final_message");
}

TEST(ApiResponse, ToolsThatAServerRunsAreLeftOut) {
  const ApiRequest r = request(
      R"("input": "q", "tools": [{"type": "web_search", "external_web_access": false}, {"type": "function", "name": "f"},
         {"type": "local_shell"}, {"type": "web_search_preview_2025_03_11"}])");
  ASSERT_EQ(r.tools.functions.size(), 1u);
  EXPECT_EQ(r.tools.left_out,
            (std::vector<std::string>{"web_search", "local_shell", "web_search_preview_2025_03_11"}));
  EXPECT_NE(r.response.given_back.find(R"("tools":[{"name":"f","type":"function"}])"), std::string::npos);
  EXPECT_FALSE(
      request(R"("input": "q", "tools": [{"type": "web_search"}], "tool_choice": "auto")").tools.offered());
}

TEST(ApiResponse, MetadataIsBounded) {
  const auto metadata = [](int members, int key, int value) {
    std::string out = R"("input": "q", "metadata": {)";
    for (int i = 0; i < members; ++i)
      out += (i ? ",\"" : "\"") + std::string(1, static_cast<char>('a' + i)) + std::string(key - 1, 'k') +
             "\":\"" + std::string(value, 'v') + "\"";
    return out + "}";
  };
  (void)request(metadata(16, 64, 512));
  EXPECT_EQ(refusal(metadata(17, 1, 1)).param, "metadata");
  EXPECT_TRUE(refusal(metadata(1, 65, 1)).param.starts_with("metadata.ak"));
  EXPECT_EQ(refusal(metadata(1, 1, 513)).param, "metadata.a");
}

TEST(ApiResponse, IgnoredFieldsAreNotRepeated) {
  const ApiRequest r = request(
      R"("input": "q", "text": {"format": {"type": "text", "x": 1}, "y": 2}, "reasoning": {"effort": "low", "z": 3}, "junk": 4)");
  EXPECT_NE(r.response.given_back.find(R"("text":{"format":{"type":"text"}})"), std::string::npos);
  EXPECT_NE(r.response.given_back.find(R"("reasoning":{"effort":"low"})"), std::string::npos);
  EXPECT_EQ(r.ignored, (std::vector<std::string>{"reasoning.z", "text.format.x", "text.y", "junk"}));
}

TEST(ApiResponse, UnknownFieldsOfItems) {
  // Items of an earlier answer have members that the next prompt does not need.
  const ApiRequest r = request(
      R"("input": [{"role": "user", "content": [{"type": "input_text", "text": "a", "x": 1}], "y": 2},
      {"type": "reasoning", "id": "rs", "status": null, "summary": [], "encrypted_content": "e"},
      {"type": "message", "id": "m", "status": "completed", "role": "assistant", "content": [{"type": "output_text", "text": "b", "annotations": [], "logprobs": []}]},
      {"type": "function_call", "id": "fc", "status": "completed", "call_id": "1", "name": "f", "arguments": "{}", "z": 3},
      {"type": "function_call_output", "call_id": "1", "output": "c"}], "tools": [{"type": "function", "name": "f", "w": 4}])");
  EXPECT_EQ(r.ignored, (std::vector<std::string>{"input.y", "input.content.x", "input.encrypted_content",
                                                 "input.z", "tools.w"}));
}

TEST(ApiResponse, EffortByEveryName) {
  for (const char* fields : {R"("reasoning_effort": "high")", R"("reasoning": {"effort": "high"})",
                             R"("reasoning_effort": "high", "reasoning": {"effort": "high"})"})
    EXPECT_EQ(request(R"("input": "q", )" + std::string(fields)).effort, ReasoningEffort::kHigh);
  EXPECT_EQ(request(R"("input": "q", "reasoning_effort": "low")").effort_field, "reasoning_effort");
  EXPECT_EQ(refusal(R"("input": "q", "reasoning_effort": "low", "reasoning": {"effort": "high"})").param,
            "reasoning_effort");
  EXPECT_EQ(request(R"("input": "q", "enable_thinking": false)").thinking, false);
}

TEST(ApiResponse, AWholeAnswer) {
  const auto answer = answer_to(request(R"("input": "q", "temperature": 0.5, "metadata": {"k": "v"})"));
  EXPECT_EQ(push_all(answer.get(), kSaid), "");
  const Json json = Json::parse(answer->finish());
  EXPECT_EQ(json["id"], "resp_u");
  EXPECT_EQ(json["object"], "response");
  EXPECT_EQ(json["status"], "completed");
  EXPECT_EQ(json["temperature"], 0.5);
  EXPECT_EQ(json["metadata"]["k"], "v");
  EXPECT_EQ(json["tool_choice"], "auto");
  ASSERT_EQ(json["output"].size(), 2u);
  EXPECT_EQ(json["output"][0]["type"], "reasoning");
  EXPECT_EQ(json["output"][0]["content"][0]["text"], "Hm.");
  EXPECT_EQ(json["output"][1]["content"][0]["text"], "685");
  EXPECT_EQ(json["output"][1]["status"], "completed");
  EXPECT_EQ(json["usage"]["input_tokens"], 3);
  EXPECT_EQ(json["usage"]["output_tokens_details"]["reasoning_tokens"], 3);
}

TEST(ApiResponse, EventsTellTheSame) {
  const auto answer = answer_to(request(R"("input": "q", "stream": true)"));
  std::string text = push_all(answer.get(), kSaid);
  text += answer->finish();
  const auto events = events_in(text);
  std::vector<std::string> kinds;
  std::string said, reasoning;
  for (const Json& e : events) {
    if (e["type"] == "response.output_text.delta") said += e["delta"].get<std::string>();
    if (e["type"] == "response.reasoning_text.delta") reasoning += e["delta"].get<std::string>();
    if (kinds.empty() || kinds.back() != e["type"]) kinds.push_back(e["type"]);
  }
  EXPECT_EQ(said, "685");
  EXPECT_EQ(reasoning, "Hm.");
  EXPECT_EQ(
      kinds,
      (std::vector<std::string>{
          "response.created", "response.in_progress", "response.output_item.added",
          "response.content_part.added", "response.reasoning_text.delta", "response.reasoning_text.done",
          "response.content_part.done", "response.output_item.done", "response.output_item.added",
          "response.content_part.added", "response.output_text.delta", "response.output_text.done",
          "response.content_part.done", "response.output_item.done", "response.completed"}));
  const auto whole = answer_to(request(R"("input": "q")"));
  push_all(whole.get(), kSaid);
  EXPECT_EQ(events.back()["response"], Json::parse(whole->finish()));
}

// The first token may be the last one.
TEST(ApiResponse, AResponseThatBeginsIsInProgress) {
  const auto answer = answer_to(request(R"("input": "q", "stream": true)"));
  std::string text = push_all(answer.get(), "<|channel|>", FinishReason::kLength);
  text += answer->finish();
  for (const Json& e : events_in(text)) {
    const Json& r = e["response"];
    const bool ended = e["type"] == "response.incomplete";
    EXPECT_EQ(r["status"], ended ? "incomplete" : "in_progress");
    const Json cut = {{"reason", "max_output_tokens"}};
    EXPECT_EQ(r["incomplete_details"], ended ? cut : Json()) << e["type"].get<std::string>();
    EXPECT_EQ(r["usage"].is_null(), !ended) << e["type"].get<std::string>();
  }
}

// Each one is sent with its token's delta, and once with the whole response.
TEST(ApiResponse, LogProbabilitiesAreNotRepeatedByEveryEnd) {
  const auto answer = answer_to(request(
      R"("input": "q", "stream": true, "include": ["message.output_text.logprobs"], "top_logprobs": 20)"));
  std::string text = push_all(answer.get(), kSaid);
  text += answer->finish();
  size_t of_deltas = 0;
  for (const Json& e : events_in(text)) {
    if (e["type"] == "response.output_text.delta") of_deltas += e["logprobs"].size();
    if (e["type"] == "response.output_text.done") {
      EXPECT_TRUE(e["logprobs"].empty());
    }
    if (e["type"] == "response.content_part.done" && e["part"]["type"] == "output_text") {
      EXPECT_TRUE(e["part"]["logprobs"].empty());
    }
    if (e["type"] == "response.output_item.done" && e["item"]["type"] == "message") {
      EXPECT_TRUE(e["item"]["content"][0]["logprobs"].empty());
    }
    if (e["type"] == "response.completed") {
      EXPECT_EQ(e["response"]["output"][1]["content"][0]["logprobs"].size(), of_deltas);
    }
  }
  EXPECT_EQ(of_deltas, 3u);
}

TEST(ApiResponse, LogprobsOfATextWithoutItsFrame) {
  for (const std::string stream : {"false", "true"}) {
    const auto answer = answer_to(
        request(R"("input": "q", "include": ["message.output_text.logprobs"], "stream": )" + stream));
    const std::string events = push_all(answer.get(), "<|channel|>final 685", FinishReason::kLength);
    const std::string end = answer->finish();
    const Json whole = stream == "false" ? Json::parse(end) : events_in(events + end).back()["response"];
    const Json& part = whole["output"][0]["content"][0];
    EXPECT_EQ(part["text"], "685");
    EXPECT_FALSE(part["logprobs"].empty());
  }
}

TEST(ApiResponse, ACallWaitsForItsOutput) {
  const auto answer = answer_to(request(kTools + R"(, "input": "q")"));
  push_all(answer.get(), kCalls);
  const Json call = Json::parse(answer->finish())["output"][1];
  EXPECT_EQ(call["type"], "function_call");
  EXPECT_EQ(call["name"], "f");
  EXPECT_EQ(call["arguments"], "{}");
  const auto stored = answer->stored();
  ASSERT_TRUE(stored);
  EXPECT_EQ(stored->conversation.function_of.at(call["call_id"]), "f");
  ASSERT_EQ(stored->conversation.messages.size(), 3u);  // the prompt, the reasoning, the call
  EXPECT_EQ(stored->conversation.messages[2].recipient, "functions.f");
}

TEST(ApiResponse, ACallThatAStopTokenCutsIsIncomplete) {
  const std::string head = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>";
  for (const auto& [said, status] : {std::pair{"{\"a\" 5", "incomplete"}, {"{} 5", "completed"}}) {
    const auto answer = answer_to(request(kTools + R"(, "input": "q")"));
    push_all(answer.get(), head + said);  // the last token ends the answer and is not part of it
    EXPECT_EQ(Json::parse(answer->finish())["output"][0]["status"], status);
  }
}

TEST(ApiResponse, AnAnswerThatIsCut) {
  const auto answer = answer_to(request(R"("input": "q", "store": false)"));
  push_all(answer.get(), "<|channel|>final<|message|>68", FinishReason::kLength);
  const Json json = Json::parse(answer->finish());
  EXPECT_EQ(json["status"], "incomplete");
  EXPECT_EQ(json["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(json["output"][0]["status"], "incomplete");
  EXPECT_FALSE(answer->stored());
}

TEST(ApiResponse, AStreamThatFails) {
  const auto answer = answer_to(request(R"("input": "q", "stream": true)"));
  std::string text = push_all(answer.get(), "<|channel|>final<|message|>6", FinishReason::kNone);
  text += answer->fail({.status = 500, .message = "no memory"});
  const Json last = events_in(text).back();
  EXPECT_EQ(last["type"], "response.failed");
  EXPECT_EQ(last["response"]["error"]["message"], "no memory");
  EXPECT_EQ(last["response"]["status"], "failed");
}

TEST(ResponseStore, TheLeastRecentlyUsedGoFirst) {
  const auto response = [](size_t bytes) {
    return std::make_shared<StoredResponse>(
        StoredResponse{.conversation = {}, .json = std::string(bytes, 'x')});
  };
  ResponseStore store(3, 10000);
  for (const char* id : {"a", "b", "c"}) store.put(id, response(10));
  EXPECT_TRUE(store.find("a"));
  store.put("d", response(10));
  EXPECT_FALSE(store.find("b"));
  EXPECT_TRUE(store.find("a") && store.find("c") && store.find("d"));
  EXPECT_FALSE(store.put("e", response(50000)));  // exceeds the whole limit
  EXPECT_FALSE(store.find("e"));
  EXPECT_TRUE(store.find("a") && store.find("c") && store.find("d"));
  EXPECT_TRUE(store.erase("d"));
  EXPECT_FALSE(store.erase("d") || store.find("d"));
  store.put("f", response(10));
  store.put("f", response(20));
  EXPECT_EQ(store.find("f")->json.size(), 20u);
}

TEST(ResponseStore, EverythingCounts) {
  const std::string text(5000, 'x');
  StoredResponse all;
  all.json = all.conversation.instructions = text;
  all.conversation.messages.push_back(
      {.name = text, .channel = text, .recipient = text, .content_type = text, .content = text});
  all.conversation.function_of[text] = text;
  EXPECT_GT(bytes_of(all), 9 * 5000);
  EXPECT_LT(bytes_of(all), 9 * 5000 + 2000);
  ResponseStore store(1000, 100000);
  for (const char* id : {"a", "b", "c"}) store.put(id, std::make_shared<StoredResponse>(all));
  EXPECT_FALSE(store.find("a"));
  EXPECT_TRUE(store.find("b") && store.find("c"));
  StoredResponse many;  // of a few bytes each
  for (int i = 0; i < 1000; ++i) many.conversation.function_of[std::to_string(i)] = "f";
  EXPECT_GT(bytes_of(many), 1000 * 64);
}

}  // namespace sluice
