#include "server/answers/answer.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "base/utf8.h"
#include "text/harmony.h"

namespace sluice {
namespace {

const Harmony& harmony() {
  static const Harmony h =
      Harmony::from(Tokenizer::load(SLUICE_SOURCE_DIR "/models/sluice-16e-tiny/tokenizer.json").value())
          .value();
  return h;
}

std::vector<int32_t> tokens_of(const std::string& text) {
  std::vector<int32_t> ids;
  EXPECT_TRUE(harmony().tokenizer().encode(text, Specials::kParse, &ids).ok());
  return ids;
}

const std::string kSaid =
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>It is "
    "685!<|return|>";

std::unique_ptr<Answer> answer_to(const ApiRequest& request, const std::string& forced = "") {
  return Answer::make(
      harmony(), request, {.id = "7", .created = 11, .model = "m", .unique = "u"},
      std::vector<std::vector<int32_t>>(std::max<size_t>(request.prompts.size(), 1), {1, 2, 3}),
      tokens_of(forced));
}

// Pushes all tokens of `said` for one choice; the last token ends the choice.
std::string push_all(Answer* answer, int64_t choice, const std::string& said,
                     FinishReason finish = FinishReason::kStop) {
  std::string out;
  const auto ids = tokens_of(said);
  for (size_t i = 0; i < ids.size(); ++i)
    answer->push(choice, {.id = ids[i], .finish = i + 1 == ids.size() ? finish : FinishReason::kNone}, &out);
  return out;
}

// The objects of an unfinished stream.
std::vector<Json> events_in(const std::string& text) {
  std::vector<Json> out;
  size_t at = 0;
  while (at < text.size()) {
    const size_t end = text.find("\n\n", at);
    EXPECT_EQ(text.substr(at, 6), "data: ");
    out.push_back(Json::parse(text.substr(at + 6, end - at - 6)));
    at = end + 2;
  }
  return out;
}

}  // namespace

TEST(ApiAnswer, AWholeChat) {
  const auto answer = answer_to({});
  EXPECT_FALSE(answer->done());
  EXPECT_EQ(push_all(answer.get(), 0, kSaid), "");
  ASSERT_TRUE(answer->done());
  const Json json = Json::parse(answer->finish());
  const auto said = static_cast<int64_t>(tokens_of(kSaid).size());
  EXPECT_EQ(
      json,
      Json::parse(
          R"({"id": "chatcmpl-7", "object": "chat.completion", "created": 11, "model": "m", "choices": [{
      "index": 0, "message": {"role": "assistant", "content": "It is 685!", "reasoning": "Hm.", "reasoning_content": "Hm."},
      "logprobs": null, "finish_reason": "stop", "stop_reason": null}], "usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 0},
      "completion_tokens": )" +
          std::to_string(said) +
          R"(, "completion_tokens_details": {"reasoning_tokens": 3}, "total_tokens": )" +
          std::to_string(said + 3) + "}}"));
}

TEST(ApiAnswer, AStreamSaysTheSameInPieces) {
  const auto answer = answer_to({.stream = true, .include_usage = true});
  const auto events = events_in(push_all(answer.get(), 0, kSaid));
  EXPECT_EQ(events.front()["choices"][0]["delta"], Json::parse(R"({"role": "assistant", "content": ""})"));
  std::string content, reasoning;
  for (const Json& e : events) {
    EXPECT_EQ(e["object"], "chat.completion.chunk");
    EXPECT_TRUE(e["usage"].is_null());
    content += e["choices"][0]["delta"].value("content", "");
    reasoning += e["choices"][0]["delta"].value("reasoning", "");
    EXPECT_EQ(e["choices"][0]["finish_reason"].is_null(), &e != &events.back());
  }
  EXPECT_EQ(content, "It is 685!");
  EXPECT_EQ(reasoning, "Hm.");
  const std::string rest = answer->finish();
  EXPECT_TRUE(rest.ends_with("data: [DONE]\n\n"));
  EXPECT_EQ(events_in(rest.substr(0, rest.find("data: [DONE]")))[0]["usage"]["prompt_tokens"], 3);
}

TEST(ApiAnswer, AStopStringEndsOnlyTheTextForTheUser) {
  const auto answer = answer_to({.stop = {"Hm", "68"}});
  push_all(answer.get(), 0, kSaid);
  const Json choice = Json::parse(answer->finish())["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "It is ");
  EXPECT_EQ(choice["message"]["reasoning"], "Hm.");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], "68");
}

TEST(ApiAnswer, AStopStringThatTheEndCompletesEndsTheAnswer) {
  // Without a frame the text is known to be content only when the answer ends.
  const auto chat = answer_to({.stop = {"68"}});
  push_all(chat.get(), 0, "It is 685", FinishReason::kLength);
  Json choice = Json::parse(chat->finish())["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "It is ");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], "68");
  // Half a character becomes text at the end.
  const auto completion = answer_to({.kind = ApiKind::kCompletion, .stop = {"\ufffd"}});
  auto ids = tokens_of("\u2603");
  ASSERT_GT(ids.size(), 1u);
  std::string out;
  completion->push(0, {.id = ids[0], .finish = FinishReason::kLength}, &out);
  choice = Json::parse(completion->finish())["choices"][0];
  EXPECT_EQ(choice["text"], "");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], "\ufffd");
}

TEST(ApiAnswer, TextThatMightHaveStoppedIsNotLost) {
  const auto answer = answer_to({.stop = {"685!!"}});
  push_all(answer.get(), 0, kSaid);
  EXPECT_EQ(Json::parse(answer->finish())["choices"][0]["message"]["content"], "It is 685!");
}

TEST(ApiAnswer, AnAnswerThatIsCut) {
  const auto answer = answer_to({});
  push_all(answer.get(), 0, "<|channel|>analysis<|message|>Hm", FinishReason::kLength);
  const Json choice = Json::parse(answer->finish())["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["message"]["content"], "");
  EXPECT_EQ(choice["message"]["reasoning"], "Hm");
}

TEST(ApiAnswer, ChoicesOfSeveralPrompts) {
  const auto answer =
      answer_to({.kind = ApiKind::kCompletion, .prompts = {"a", "b"}, .echo = true, .choices = 2});
  ASSERT_EQ(answer->choices(), 4);
  for (int64_t choice = 3; choice >= 0; --choice) {
    EXPECT_FALSE(answer->done(choice));
    push_all(answer.get(), choice, "x" + std::to_string(choice), FinishReason::kLength);
    EXPECT_TRUE(answer->done(choice));
  }
  const Json json = Json::parse(answer->finish());
  EXPECT_EQ(json["object"], "text_completion");
  for (size_t i = 0; i < 4; ++i)
    EXPECT_EQ(json["choices"][i]["text"], (i < 2 ? "ax" : "bx") + std::to_string(i));
  EXPECT_EQ(json["usage"]["prompt_tokens"], 6);
}

TEST(ApiAnswer, CachedPromptTokensCountOnce) {
  const auto answer = answer_to({.kind = ApiKind::kCompletion, .prompts = {"a", "b"}, .choices = 2});
  std::string out;
  for (int64_t choice = 0; choice < 4; ++choice)
    for (const FinishReason finish : {FinishReason::kNone, FinishReason::kLength})
      answer->push(choice, {.id = 5, .finish = finish, .cached_tokens = choice + 10}, &out);
  EXPECT_EQ(Json::parse(answer->finish())["usage"]["prompt_tokens_details"]["cached_tokens"], 10 + 12);
}

TEST(ApiAnswer, TheTokenThatEndsACompletionIsNotText) {
  const auto answer = answer_to({.kind = ApiKind::kCompletion, .prompts = {"a"}});
  push_all(answer.get(), 0, "xyz");  // kStop: the last token is in stop_token_ids
  const std::string text = Json::parse(answer->finish())["choices"][0]["text"];
  EXPECT_TRUE(std::string("xyz").starts_with(text));
  EXPECT_LT(text.size(), 3u);
}

namespace {

const std::string kCalls =
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.add "
    "<|constrain|>json<|message|>{\"a\": 1}<|call|>";

ApiRequest with_tool(bool stream = false) {
  return {.tools = {.functions = {{.name = "add"}}}, .stream = stream};
}

// Tokens with invented log probabilities: token i has -i, and one alternative that is likelier.
std::string push_with_logprobs(Answer* answer, const std::vector<int32_t>& ids) {
  std::string out;
  for (size_t i = 0; i < ids.size(); ++i)
    answer->push(0,
                 {.id = ids[i],
                  .logprob = -static_cast<float>(i),
                  .finish = i + 1 == ids.size() ? FinishReason::kLength : FinishReason::kNone,
                  .top_logprobs = {{.id = 5, .logprob = -0.5f}}},
                 &out);
  return out;
}

std::string text_in(const Json& logprobs) {
  std::string out;
  for (const Json& token : logprobs)
    for (const Json& byte : token["bytes"]) out += static_cast<char>(byte.get<int>());
  return out;
}

}  // namespace

TEST(ApiAnswer, LogprobsAreOfTheTextForTheUser) {
  const auto ids =
      tokens_of("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>é 6");
  for (const bool stream : {false, true}) {
    const auto answer = answer_to({.sampling = {.logprobs = 1}, .stream = stream});
    const std::string events = push_with_logprobs(answer.get(), ids);
    Json found = Json::array();
    if (!stream) found = Json::parse(answer->finish())["choices"][0]["logprobs"]["content"];
    for (const Json& event : events_in(events)) {
      const Json& logprobs = event["choices"][0]["logprobs"];
      EXPECT_EQ(logprobs.is_null(), event["choices"][0]["delta"].value("content", "").empty());
      if (logprobs.is_object())
        found.insert(found.end(), logprobs["content"].begin(), logprobs["content"].end());
    }
    EXPECT_EQ(text_in(found), "é 6");
    EXPECT_EQ(found.back()["logprob"], -static_cast<double>(ids.size() - 1));
    EXPECT_EQ(found.back()["top_logprobs"].size(), 1u);
    EXPECT_EQ(found.back()["top_logprobs"][0]["logprob"], -0.5);
  }
}

// Tokens of a header that turns out to be the text, or to contain it.
TEST(ApiAnswer, LogprobsOfATextWithoutItsFrame) {
  const std::pair<std::string, std::string> answers[] = {
      {"ateoun(5", "ateoun(5"},
      {"é 6<|end|>", "é 6"},
      {"<|channel|>final It is 685", "It is 685"},
      {"a b<|channel|>final 685<|return|>", "a b 685"},
      {"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final 68<|end|>"
       "<|start|>assistant<|channel|>final<|message|>5",
       "685"},
      {"6<|start|>assistant<|channel|>final<|message|>5", "65"},
      {std::string(1100, 'a') + " b", std::string(1100, 'a') + " b"}};
  for (const auto& [said, text] : answers)
    for (const bool stream : {false, true}) {
      const auto answer = answer_to({.sampling = {.logprobs = 1}, .stream = stream});
      const std::string events = push_with_logprobs(answer.get(), tokens_of(said));
      Json found = Json::array();
      std::string content;
      if (!stream) {
        const Json choice = Json::parse(answer->finish())["choices"][0];
        found = choice["logprobs"]["content"], content = choice["message"]["content"];
      }
      for (const Json& event : events_in(events)) {
        const Json& choice = event["choices"][0];
        content += choice["delta"].value("content", "");
        if (choice["logprobs"].is_object())
          for (const Json& token : choice["logprobs"]["content"]) found.push_back(token);
      }
      EXPECT_EQ(content, text);
      std::string listed = text_in(found);
      if (!text.starts_with(' ')) listed.erase(0, listed.find_first_not_of(' '));
      std::erase(listed, ' ');
      std::erase(content, ' ');
      EXPECT_EQ(listed, content) << said;
    }
}

// The text has U+FFFD for the bytes of these tokens.
TEST(ApiAnswer, LogprobsOfBytesWithoutAFrame) {
  for (const std::string said : {"\xff"
                                 "ab",
                                 "\xe2\x82",
                                 "a\xe2"
                                 "b"}) {
    const auto ids = tokens_of(said);
    const auto answer = answer_to({.sampling = {.logprobs = 0}});
    push_with_logprobs(answer.get(), ids);
    const Json choice = Json::parse(answer->finish())["choices"][0];
    EXPECT_EQ(choice["message"]["content"], valid_utf8(said));
    EXPECT_EQ(text_in(choice["logprobs"]["content"]), said) << choice.dump();
  }
}

TEST(ApiAnswer, LogprobsEndWhereAStopStringBegins) {
  const auto answer = answer_to({.sampling = {.logprobs = 0}, .stop = {"68"}});
  push_all(answer.get(), 0, kSaid);
  const Json choice = Json::parse(answer->finish())["choices"][0];
  EXPECT_EQ(text_in(choice["logprobs"]["content"]), choice["message"]["content"].get<std::string>());
}

TEST(ApiAnswer, LogprobsOfACompletion) {
  const auto answer =
      answer_to({.kind = ApiKind::kCompletion, .prompts = {"a"}, .sampling = {.logprobs = 1}});
  const auto ids = tokens_of("aé6");
  push_with_logprobs(answer.get(), ids);
  const Json logprobs = Json::parse(answer->finish())["choices"][0]["logprobs"];
  ASSERT_EQ(logprobs["tokens"].size(), ids.size());
  EXPECT_EQ(logprobs["tokens"][0], "a");
  EXPECT_EQ(logprobs["tokens"].back(), "6");
  EXPECT_EQ(logprobs["text_offset"][0], 0);
  EXPECT_EQ(logprobs["text_offset"].back(), 2);  // code points
  EXPECT_EQ(logprobs["token_logprobs"].back(), -static_cast<double>(ids.size() - 1));
  EXPECT_EQ(logprobs["top_logprobs"].back().size(), 2u);  // the most likely token, and the token itself
}

TEST(ApiAnswer, PartialCharactersAreNamedByTheirBytes) {
  const Tokenizer& tokenizer = harmony().tokenizer();
  const auto ids = tokens_of("\xe2\x82");
  const auto answer =
      answer_to({.kind = ApiKind::kCompletion, .prompts = {"a"}, .sampling = {.logprobs = 0}});
  push_with_logprobs(answer.get(), ids);
  const Json choice = Json::parse(answer->finish())["choices"][0];
  EXPECT_EQ(choice["text"], "\ufffd");
  EXPECT_EQ(choice["logprobs"]["tokens"][0],
            tokenizer.piece(ids[0]).size() == 1 ? "bytes:\\xe2" : "bytes:\\xe2\\x82");
  EXPECT_EQ(choice["logprobs"]["tokens"].size(), ids.size());
}

// A token within a character begins where the character begins, in a prompt as in an answer. An incomplete one is U+FFFD in the text.
TEST(ApiAnswer, OffsetsOfPartialCharacters) {
  const std::vector<std::string> bytes = {"a", "\xc3", "\xa9", "b", "\xe2", "\xc3", "c", "\xa9", "d"};
  const std::string text = "a\u00e9b\ufffd\ufffdc\ufffdd";
  const Json offsets = {0, 1, 1, 2, 3, 4, 5, 6, 7};
  std::vector<int32_t> ids;
  for (const std::string& one : bytes) {
    ids.push_back(tokens_of(one)[0]);
    ASSERT_EQ(harmony().tokenizer().piece(ids.back()), one);
  }
  const auto sampled =
      answer_to({.kind = ApiKind::kCompletion, .prompts = {"a"}, .sampling = {.logprobs = 0}});
  push_with_logprobs(sampled.get(), ids);
  const ApiRequest request{.kind = ApiKind::kCompletion,
                           .prompts = {ids},
                           .echo = true,
                           .sampling = {.max_tokens = 0, .logprobs = 0}};
  const auto echoed = Answer::make(harmony(), request, {.id = "7", .model = "m"}, {ids}, {});
  std::string out;
  echoed->push(0, {.id = 0, .prompt = std::vector<TokenScore>(ids.size() - 1)}, &out);
  for (Answer* answer : {sampled.get(), echoed.get()}) {
    const Json choice = Json::parse(answer->finish())["choices"][0];
    EXPECT_EQ(choice["text"], text);
    EXPECT_EQ(choice["logprobs"]["text_offset"], offsets);
  }
}

// The prompt's tokens come first in the lists, the first one without a log probability; then all sampled tokens.
TEST(ApiAnswer, AnEchoListsThePromptsTokens) {
  const auto prompt = tokens_of("é<|start|>x");
  const size_t n = prompt.size();
  for (const bool stream : {false, true}) {
    const ApiRequest request{.kind = ApiKind::kCompletion,
                             .prompts = {prompt},
                             .echo = true,
                             .sampling = {.logprobs = 1},
                             .stream = stream};
    const auto answer = Answer::make(harmony(), request, {.id = "7", .model = "m"}, {prompt}, {});
    GeneratedToken drawn{
        .id = tokens_of("6")[0], .logprob = -9, .top_logprobs = {{.id = 5, .logprob = -0.5f}}};
    for (size_t i = 1; i < n; ++i)
      drawn.prompt.push_back(
          {.logprob = -static_cast<float>(i), .top_logprobs = {{.id = prompt[0], .logprob = -0.25f}}});
    std::string out;
    answer->push(0, drawn, &out);
    answer->push(0, {.id = tokens_of("<|return|>")[0], .logprob = -3, .finish = FinishReason::kStop}, &out);
    Json choice;
    if (stream) {
      const auto events = events_in(out);
      choice = events[0]["choices"][0];
      for (size_t i = 1; i < events.size(); ++i) {
        const Json& more = events[i]["choices"][0];
        choice["text"] = choice["text"].get<std::string>() + more["text"].get<std::string>();
        for (const auto& [list, values] : more["logprobs"].items())
          choice["logprobs"][list].insert(choice["logprobs"][list].end(), values.begin(), values.end());
      }
    } else {
      const Json json = Json::parse(answer->finish());
      EXPECT_EQ(json["usage"]["completion_tokens"], 2);
      choice = json["choices"][0];
    }
    EXPECT_TRUE(choice["text"].get<std::string>().starts_with("é<|start|>x6"));
    const Json& lists = choice["logprobs"];
    for (const char* list : {"text_offset", "token_logprobs", "tokens", "top_logprobs"})
      ASSERT_EQ(lists[list].size(), n + 2) << list;
    EXPECT_TRUE(lists["token_logprobs"][0].is_null());
    EXPECT_TRUE(lists["top_logprobs"][0].is_null());
    EXPECT_EQ(lists["tokens"][n - 2], "<|start|>");
    EXPECT_EQ(lists["tokens"][n - 1], "x");
    EXPECT_EQ(lists["text_offset"][n - 1], 10);
    EXPECT_EQ(lists["token_logprobs"][n - 1], -static_cast<double>(n - 1));
    EXPECT_EQ(lists["top_logprobs"][n - 1].size(), 2u);  // the most likely token, and the token itself
    EXPECT_EQ(lists["tokens"][n], "6");
    EXPECT_EQ(lists["text_offset"][n], 11);
    EXPECT_EQ(lists["token_logprobs"][n], -9);
    EXPECT_EQ(lists["tokens"][n + 1], "<|return|>");
    EXPECT_EQ(lists["token_logprobs"][n + 1], -3);
  }
}

TEST(ApiAnswer, AnEchoAlone) {
  const auto prompt = tokens_of("ab");
  const ApiRequest request{.kind = ApiKind::kCompletion,
                           .prompts = {"ab"},
                           .echo = true,
                           .sampling = {.max_tokens = 0, .logprobs = 0}};
  const auto answer = Answer::make(harmony(), request, {.id = "7", .model = "m"}, {prompt}, {});
  std::string out;
  answer->push(0, {.id = 9, .finish = FinishReason::kStop, .prompt = {prompt.size() - 1, {.logprob = -1}}},
               &out);
  ASSERT_TRUE(answer->done());
  const Json json = Json::parse(answer->finish());
  EXPECT_EQ(json["choices"][0]["text"], "ab");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(json["choices"][0]["logprobs"]["tokens"].size(), prompt.size());
  EXPECT_EQ(json["usage"]["completion_tokens"], 0);
  EXPECT_EQ(json["usage"]["total_tokens"], prompt.size());
}

TEST(ApiAnswer, ACallOfAFunction) {
  const auto answer = answer_to(with_tool());
  push_all(answer.get(), 0, kCalls);
  const Json choice = Json::parse(answer->finish())["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_TRUE(choice["message"]["content"].is_null());
  EXPECT_EQ(choice["message"]["reasoning"], "Hm.");
  EXPECT_EQ(
      choice["message"]["tool_calls"],
      Json::parse(
          R"([{"id": "call_u_0_0", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 1}"}}])"));
}

TEST(ApiAnswer, ACallInPieces) {
  const auto answer = answer_to(with_tool(true));
  const auto events = events_in(push_all(answer.get(), 0, kCalls));
  std::string arguments, name, id;
  for (const Json& e : events) {
    const Json& delta = e["choices"][0]["delta"];
    EXPECT_EQ(delta.value("content", ""), "");
    if (!delta.contains("tool_calls")) continue;
    const Json& call = delta["tool_calls"][0];
    EXPECT_EQ(call["index"], 0);
    id += call.value("id", "");
    name += call["function"].value("name", "");
    arguments += call["function"].value("arguments", "");
  }
  EXPECT_EQ(id, "call_u_0_0");
  EXPECT_EQ(name, "add");
  EXPECT_EQ(arguments, "{\"a\": 1}");
  EXPECT_EQ(events.back()["choices"][0]["finish_reason"], "tool_calls");
}

TEST(ApiAnswer, ACallThatTheRequestBegins) {
  const auto answer =
      answer_to(with_tool(), "<|channel|>commentary to=functions.add <|constrain|>json<|message|>");
  push_all(answer.get(), 0, "{\"a\"", FinishReason::kLength);
  const Json choice = Json::parse(answer->finish())["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"],
            Json::parse(R"({"name": "add", "arguments": "{\"a\""})"));
}

TEST(ApiAnswer, ACallThatAStopTokenCutsIsNoCallToMake) {
  const std::string head = "<|channel|>commentary to=functions.add <|constrain|>json<|message|>";
  for (const auto& [said, reason] : {std::pair{"{\"a\": 1 5", "stop"}, {"{\"a\": 1} 5", "tool_calls"}}) {
    const auto answer = answer_to(with_tool(), head);
    push_all(answer.get(), 0, said);  // the last token ends the answer and is not part of it
    const Json choice = Json::parse(answer->finish())["choices"][0];
    EXPECT_EQ(choice["finish_reason"], reason);
    EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["name"], "add");
  }
}

TEST(ApiAnswer, ACallOfAnUnknownFunctionIsText) {
  const auto answer = answer_to({});
  push_all(answer.get(), 0, kCalls);
  const Json choice = Json::parse(answer->finish())["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "{\"a\": 1}");
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
  EXPECT_EQ(choice["finish_reason"], "stop");
}

TEST(ApiAnswer, Errors) {
  const ApiError error{.status = 404, .message = "no \"such\" \xff", .param = "model"};
  EXPECT_EQ(
      Json::parse(error_json(error)),
      Json::parse(
          R"({"error": {"message": "no \"such\" \ufffd", "type": "invalid_request_error", "param": "model",
            "code": null}})"));
}

}  // namespace sluice
