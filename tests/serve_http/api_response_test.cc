#include <gtest/gtest.h>

#include "apps/serve/api_answer.h"
#include "apps/serve/response_store.h"
#include "base/json.h"

namespace sluice::apps {
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
  EXPECT_TRUE(std::holds_alternative<ApiRequest>(read)) << std::get<ApiError>(read).message;
  return std::get<ApiRequest>(std::move(read));
}

ApiError refusal(const std::string& fields) {
  auto read = read_response("{" + fields + "}", kLimits, earlier);
  if (const auto* error = std::get_if<ApiError>(&read)) return *error;
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

// Checks the frame of each event, and that they are numbered.
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

TEST(ApiResponse, GoesOnFromAnEarlierOne) {
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
      {R"("input": "q", "tools": [{"type": "web_search"}])", "tools[0].type"}};
  for (const auto& [fields, param] : cases) {
    const ApiError e = refusal(fields);
    EXPECT_EQ(e.param, param) << e.message;
  }
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
  ASSERT_EQ(stored->conversation.messages.size(), 3u);  // the question, the reasoning, the call
  EXPECT_EQ(stored->conversation.messages[2].recipient, "functions.f");
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
  ResponseStore store(3, 1000);
  for (const char* id : {"a", "b", "c"}) store.put(id, response(10));
  EXPECT_TRUE(store.find("a"));
  store.put("d", response(10));
  EXPECT_FALSE(store.find("b"));
  EXPECT_TRUE(store.find("a") && store.find("c") && store.find("d"));
  store.put("e", response(5000));  // larger than all that may be kept: it alone stays
  EXPECT_TRUE(store.find("e"));
  EXPECT_FALSE(store.find("a") || store.find("c") || store.find("d"));
  EXPECT_TRUE(store.erase("e"));
  EXPECT_FALSE(store.erase("e") || store.find("e"));
  store.put("f", response(10));
  store.put("f", response(20));
  EXPECT_EQ(store.find("f")->json.size(), 20u);
}

}  // namespace sluice::apps
