#include "text/deepseek/deepseek_parser.h"

#include <algorithm>

#include "base/random.h"
#include "harness/chat/answers.h"
#include "harness/chat/deepseek.h"

namespace sluice {
namespace {

using Model = DeepSeekModel;
using PartBegin = PartParser::Begin;
using PartCalls = PartParser::Calls;

ParsedAnswer read(Model model, const std::vector<int32_t>& ids, PartBegin begin = PartBegin::kAnswer,
                  PartCalls calls = PartCalls::kRead) {
  DeepSeekParser parser(deepseek(model), begin, calls);
  return parsed_answer(parser, ids);
}
std::string said(Model model, std::string_view text, PartBegin begin = PartBegin::kAnswer,
                 PartCalls calls = PartCalls::kRead) {
  return shown(read(model, deepseek_ids(text), begin, calls));
}

const std::string kEos = "<｜end▁of▁sentence｜>", kOpen = "<｜tool▁calls▁begin｜>",
                  kShut = "<｜tool▁calls▁end｜>", kCallEnd = "<｜tool▁call▁end｜>";
// A call without the tokens that end it.
std::string fenced(const std::string& name, const std::string& arguments) {
  return "<｜tool▁call▁begin｜>function<｜tool▁sep｜>" + name + "\n```json\n" + arguments + "\n```";
}
std::string bare(const std::string& name, const std::string& arguments) {
  return "<｜tool▁call▁begin｜>" + name + "<｜tool▁sep｜>" + arguments;
}

TEST(DeepSeekParser, ReadsAnswers) {
  for (const Model model : {Model::kV3, Model::kR1, Model::kR1Opened, Model::kV31}) {
    EXPECT_EQ(said(model, "4 👍" + kEos), "final(4 👍)");
    EXPECT_EQ(said(model, ""), "");
    EXPECT_EQ(said(model, kEos), "");
    EXPECT_EQ(said(model, " \n" + kEos), "final( \n)");
  }
  EXPECT_EQ(said(Model::kR1, "<think>\nHm.\n\nYes.\n</think>\n\n4\n\n" + kEos),
            "reasoning(Hm.\n\nYes.)final(4\n\n)");
  EXPECT_EQ(said(Model::kR1Opened, "Hm.\n</think>\n\n4" + kEos, PartBegin::kReasoning),
            "reasoning(Hm.)final(4)");
  EXPECT_EQ(said(Model::kV31, "Hm.</think>4" + kEos, PartBegin::kReasoning), "reasoning(Hm.)final(4)");
  for (const Model model : {Model::kV3, Model::kR1, Model::kR1Opened, Model::kV31})
    EXPECT_EQ(said(model, "\n\n4\n" + kEos, PartBegin::kText), "final(\n\n4\n)");
  // V3 does not reason, so <think> is text.
  EXPECT_EQ(said(Model::kV3, "<think>a</think>b" + kEos), "final(<think>a</think>b)");
}

TEST(DeepSeekParser, ReadsCalls) {
  const std::string f = R"({"a": [1, "}"]})";
  EXPECT_EQ(said(Model::kV3, kOpen + fenced("f", f) + kCallEnd + kShut + kEos), "f(" + f + ")");
  EXPECT_EQ(said(Model::kV3, "Wait.\n" + kOpen + fenced("f", f) + kCallEnd + "\n" + fenced("g-2", "{}") +
                                 kCallEnd + kShut + kEos),
            "text(Wait.\n)f(" + f + ")g-2({})");
  EXPECT_EQ(said(Model::kR1Opened, "Hm.\n</think>\n\n" + kOpen + fenced("f", f) + kCallEnd + kShut + kEos,
                 PartBegin::kReasoning),
            "reasoning(Hm.)f(" + f + ")");
  EXPECT_EQ(said(Model::kV31,
                 "Wait." + kOpen + bare("f", f) + kCallEnd + bare("g", "{}") + kCallEnd + kShut + kEos),
            "text(Wait.)f(" + f + ")g({})");
  EXPECT_EQ(said(Model::kV31, "Hm.</think>" + kOpen + bare("f", f) + kCallEnd + kShut + kEos,
                 PartBegin::kReasoning),
            "reasoning(Hm.)f(" + f + ")");
}

TEST(DeepSeekParser, EndsSayWhatEndedAMessage) {
  const auto answer = read(Model::kR1, deepseek_ids("<think>\na\n</think>\n\nb" + kOpen + fenced("f", "{}") +
                                                    kCallEnd + fenced("g", "{}") + kCallEnd + kShut + kEos));
  ASSERT_EQ(answer.messages.size(), 4u);
  EXPECT_EQ(answer.messages[0].end, MessageEnd::kEnd);
  EXPECT_EQ(answer.messages[1].end, MessageEnd::kEnd);
  EXPECT_EQ(answer.messages[2].end, MessageEnd::kCall);
  EXPECT_EQ(answer.messages[3].end, MessageEnd::kCall);
  EXPECT_EQ(read(Model::kV3, deepseek_ids("b" + kEos)).messages[0].end, MessageEnd::kReturn);
  EXPECT_EQ(read(Model::kV3, deepseek_ids("b")).messages[0].end, MessageEnd::kNothing);
}

TEST(DeepSeekParser, CallsAreTextWhereNoneAreOffered) {
  const std::string calls = kOpen + fenced("f", "{}") + kCallEnd + kShut;
  EXPECT_EQ(said(Model::kV3, calls + kEos, PartBegin::kAnswer, PartCalls::kText), "final(" + calls + ")");
}

TEST(DeepSeekParser, ReadsCallsOfOtherForms) {
  const auto v3 = [](const std::string& body) {
    return said(Model::kV3, kOpen + "<｜tool▁call▁begin｜>" + body + kCallEnd + kShut + kEos);
  };
  EXPECT_EQ(v3("function<｜tool▁sep｜>f"), "f({})");
  EXPECT_EQ(v3("function<｜tool▁sep｜>f\n"), "f({})");
  EXPECT_EQ(v3("function<｜tool▁sep｜> f \n\n{\"a\": 1}\n"), "f({\"a\": 1})");
  EXPECT_EQ(v3("function<｜tool▁sep｜>\nf\n```\n{\"a\": 1}```"), "f({\"a\": 1})");
  EXPECT_EQ(v3("function<｜tool▁sep｜>f\n```json\n\n```"), "f({})");
  EXPECT_EQ(v3("function<｜tool▁sep｜>f\n```json\n{\"code\": \"```\\n<think>\"}\n```"),
            "f({\"code\": \"```\\n<think>\"})");
  EXPECT_EQ(v3("function<｜tool▁sep｜>f\n```json {\"a\": 1} ```"), "f({\"a\": 1})");
  EXPECT_EQ(v3("function<｜tool▁sep｜>f\n```python\n{}\n```"), "f({})[text outside a call: '```python']");
  EXPECT_EQ(v3("function<｜tool▁sep｜>f\n```"), "f({})");
  EXPECT_EQ(v3("code<｜tool▁sep｜>f\n```json\n{}\n```"), "f({})[text outside a call: 'code']");
  EXPECT_EQ(v3("function<｜tool▁sep｜>f\n```json\n{}\n````"), "f({})[text outside a call: '````']");
  EXPECT_EQ(v3("function<｜tool▁sep｜>not offered\n```json\n{}\n```"), "not offered({})");
  const auto v31 = [](const std::string& body) {
    return said(Model::kV31, kOpen + "<｜tool▁call▁begin｜>" + body + kCallEnd + kShut + kEos);
  };
  EXPECT_EQ(v31("f<｜tool▁sep｜>"), "f({})");
  EXPECT_EQ(v31("\nf \n<｜tool▁sep｜>\n{\"a\": \"ä\"}\n"), "f({\"a\": \"ä\"})");
  EXPECT_EQ(v31("f<｜tool▁sep｜>```json\n{\"a\": 1}\n```"), "f({\"a\": 1})");
}

TEST(DeepSeekParser, ArgumentsComeAsTheyAreWritten) {
  DeepSeekParser parser(deepseek(Model::kV3), PartBegin::kAnswer, PartCalls::kRead);
  for (const int32_t id : deepseek_ids(kOpen + "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f"))
    parser.push(id);
  std::string streamed;
  const auto push = [&](std::string_view text) {
    for (const int32_t id : deepseek_ids(text))
      for (const AnswerEvent& event : parser.push(id)) streamed += event.text;
    return streamed;
  };
  EXPECT_EQ(push("\n```json\n"), "");
  EXPECT_EQ(push("{\"a\":"), "{\"a\":");
  EXPECT_EQ(push("1}"), "{\"a\":1}");
  EXPECT_EQ(push("\n``"), "{\"a\":1}");
  EXPECT_EQ(push("`"), "{\"a\":1}");
  EXPECT_EQ(push(kCallEnd), "{\"a\":1}");
}

TEST(DeepSeekParser, RecoversFromMistakes) {
  EXPECT_EQ(said(Model::kR1, "<think>\nHm.\n" + kEos), "reasoning(Hm.)[no </think>]");
  EXPECT_EQ(said(Model::kV31, "Hm.", PartBegin::kReasoning), "reasoning(Hm.)[no </think>]");
  EXPECT_EQ(said(Model::kR1, "a</think>b" + kEos), "final(ab)[</think> without <think>]");
  EXPECT_EQ(said(Model::kR1, "a<think>b</think>c" + kEos),
            "final(a)[<think> after text]reasoning(b)final(c)");
  EXPECT_EQ(
      said(Model::kV31, "a " + kOpen + bare("f", "{}") + kCallEnd + kShut + " <think> b</think>c" + kEos,
           PartBegin::kReasoning),
      "reasoning(a " + kOpen + bare("f", "{}") + kCallEnd + kShut + " <think> b)final(c)");
  // Truncated calls.
  EXPECT_EQ(said(Model::kV3, "a" + kOpen), "final(a)");
  EXPECT_EQ(said(Model::kV3, kOpen + "<｜tool▁call▁begin｜>func"), "final(func)[a call without a name]");
  EXPECT_EQ(said(Model::kV3, kOpen + "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n"),
            "f()[arguments that are not a JSON object]");
  EXPECT_EQ(said(Model::kV3, kOpen + "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": "),
            "f({\"a\":)[arguments that are not a JSON object]");
  EXPECT_EQ(said(Model::kV3, kOpen + fenced("f", "{}") + kEos), "f({})[no <｜tool▁call▁end｜>]");
  EXPECT_EQ(said(Model::kV3, kOpen + "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n`"),
            "f({})");
  EXPECT_EQ(said(Model::kV3, kOpen + fenced("f", "{}") + fenced("g", "{}") + kShut + kEos),
            "f({})[no <｜tool▁call▁end｜>]g({})[no <｜tool▁call▁end｜>]");
  // Frames that contain no valid call.
  EXPECT_EQ(said(Model::kV3, kOpen + "<｜tool▁call▁begin｜>f(1)" + kCallEnd + kShut + kEos),
            "final(f(1))[a call without a name]");
  EXPECT_EQ(said(Model::kV3, kOpen + "<｜tool▁call▁begin｜>function<｜tool▁sep｜>\n" + kCallEnd + kEos),
            "final(function<｜tool▁sep｜>\n)[a call without a name]");
  EXPECT_EQ(said(Model::kV31, kOpen + "<｜tool▁call▁begin｜><｜tool▁sep｜>{}" + kCallEnd + kEos),
            "final(<｜tool▁sep｜>{})[a call without a name]");
  EXPECT_EQ(said(Model::kV31, kOpen + bare("f", "[1]") + kCallEnd + kShut + kEos),
            "f([1])[arguments that are not a JSON object]");
  EXPECT_EQ(said(Model::kV31, kOpen + bare("f", "{} and") + kCallEnd + kShut + kEos),
            "f({} and)[arguments that are not a JSON object]");
  // Tokens in the wrong place.
  EXPECT_EQ(said(Model::kV31, bare("f", "{}") + kCallEnd + kEos), "f({})");
  EXPECT_EQ(said(Model::kV31, kOpen + bare("f", "{}") + "<｜tool▁sep｜>" + kCallEnd + kShut + kEos),
            "f({})[<｜tool▁sep｜> has no meaning here]");
  EXPECT_EQ(said(Model::kV3, "a" + kCallEnd + "b" + kEos),
            "final(ab)[<｜tool▁call▁end｜> has no meaning here]");
  EXPECT_EQ(said(Model::kV3, "a<｜User｜>b" + kEos), "final(ab)[<｜User｜> has no meaning here]");
  EXPECT_EQ(said(Model::kV3, "<｜tool▁outputs▁begin｜>b" + kEos),
            "final(b)[<｜tool▁outputs▁begin｜> has no meaning here]");
  EXPECT_EQ(said(Model::kV31, kOpen + bare("f", "{}") + kCallEnd + kShut + "\nDone." + kEos),
            "f({})final(Done.)[text after a call]");
}

// Byte by byte, so that characters and the parts of a call are split.
TEST(DeepSeekParser, DoesNotDependOnWhereTokensEnd) {
  const auto bytes_of = [](const std::string& text) {
    std::vector<int32_t> ids;
    for (size_t at = 0; at < text.size();) {
      size_t size = 1;
      for (const auto& token : DeepSeek::named_tokens())
        if (text.compare(at, token.text.size(), token.text) == 0) size = token.text.size();
      for (const int32_t id : deepseek_ids(text.substr(at, size))) ids.push_back(id);
      at += size;
    }
    return ids;
  };
  const std::string head = "<think>\n\nÄ👍\n\nx\n</think>\n\n\nJä 👍\n", f = R"({"x": "Ö👍\"`"})";
  const std::pair<Model, std::string> cases[] = {
      {Model::kR1,
       head + kOpen + fenced("gä", f) + kCallEnd + "\n" + fenced("f", "{}") + kCallEnd + kShut + kEos},
      {Model::kV31, head + kOpen + bare("gä", f) + kCallEnd + bare("f", "{}") + kCallEnd + kShut + kEos}};
  for (const auto& [model, text] : cases) {
    const std::string want = "reasoning(Ä👍\n\nx)text(Jä 👍\n)gä(" + f + ")f({})";
    EXPECT_EQ(said(model, text), want);
    const std::vector<int32_t> bytes = bytes_of(text);
    EXPECT_EQ(shown(read(model, bytes)), want);
    for (size_t n = 0; n < bytes.size(); ++n)
      read(model, {bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n)});
  }
}

TEST(DeepSeekParser, AnyTokens) {
  Random random(7);
  const auto below = [&](int64_t n) { return static_cast<int32_t>(random.integer(0, n - 1)); };
  for (int i = 0; i < 2000; ++i) {
    const Model model = static_cast<Model>(below(4));
    std::vector<int32_t> ids;
    for (int n = below(40); n > 0; --n) {
      const auto& named = DeepSeek::named_tokens();
      const int32_t frame =
          deepseek(Model::kR1).tokens().*named[static_cast<size_t>(below(std::ssize(named)))].id;
      ids.push_back(below(3) ? below(deepseek_tokenizer().vocab_size() + 2) : frame);
    }
    read(model, ids, below(2) ? PartBegin::kAnswer : PartBegin::kReasoning,
         below(4) ? PartCalls::kRead : PartCalls::kText);
  }
}

}  // namespace
}  // namespace sluice
