#include "text/chatml_parser.h"

#include <algorithm>

#include "base/random.h"
#include "harness/chat/answers.h"
#include "harness/chatml.h"

namespace sluice {
namespace {

using ChatMlBegin = PartParser::Begin;
using Calls = PartParser::Calls;

ParsedAnswer parse(const std::vector<int32_t>& ids, ChatMlBegin begin, Calls calls) {
  ChatMlParser parser(chatml(), begin, calls);
  return parsed_answer(parser, ids);
}
std::string parsed(std::string_view text, ChatMlBegin begin = ChatMlBegin::kAnswer,
                   Calls calls = Calls::kRead) {
  return shown(parse(qwen_ids(text), begin, calls));
}

const std::string kCall = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, \"}\"]}}\n</tool_call>";

TEST(ChatMlParser, ReadsAnswers) {
  EXPECT_EQ(parsed("4 \xf0\x9f\x91\x8d<|im_end|>"), "final(4 \xf0\x9f\x91\x8d)");
  EXPECT_EQ(parsed("<think>\nHm.\n\nYes.\n</think>\n\n4\n\n<|im_end|>"),
            "reasoning(Hm.\n\nYes.)final(4\n\n)");
  EXPECT_EQ(parsed("Hm.\n</think>\n\n4<|im_end|>", ChatMlBegin::kReasoning), "reasoning(Hm.)final(4)");
  EXPECT_EQ(parsed("<think>\n\n</think>\n\n4<|im_end|>"), "final(4)");
  EXPECT_EQ(parsed("<think>\nHm.\n</think>\n\n" + kCall + "<|im_end|>"),
            "reasoning(Hm.)f({\"a\": [1, \"}\"]})");
  EXPECT_EQ(parsed("Wait.\n" + kCall + "\n" + kCall + "<|im_end|>"),
            "text(Wait.)f({\"a\": [1, \"}\"]})f({\"a\": [1, \"}\"]})");
  EXPECT_EQ(parsed(""), "");
  EXPECT_EQ(parsed("<|im_end|>"), "");
  EXPECT_EQ(parsed(" \n<|im_end|>"), "final( \n)");
}

TEST(ChatMlParser, ContinuesAText) {
  const auto continued = [](std::string_view text) { return parsed(text, ChatMlBegin::kText); };
  EXPECT_EQ(continued("\n 4\n<|im_end|>"), "final(\n 4\n)");
  EXPECT_EQ(continued(" \n"), "final( \n)");
  EXPECT_EQ(continued("a\n" + kCall + "<|im_end|>"), "text(a)f({\"a\": [1, \"}\"]})");
  EXPECT_EQ(continued(kCall + "<|im_end|>"), "f({\"a\": [1, \"}\"]})");
  EXPECT_EQ(continued("<|im_end|>"), "");
  EXPECT_EQ(continued(""), "");
}

TEST(ChatMlParser, EndsSayWhatEndedAMessage) {
  const auto answer = parse(qwen_ids("<think>\na\n</think>\n\nb\n" + kCall + kCall + "<|im_end|>"),
                            ChatMlBegin::kAnswer, Calls::kRead);
  ASSERT_EQ(answer.messages.size(), 4u);
  EXPECT_EQ(answer.messages[0].end, MessageEnd::kEnd);
  EXPECT_EQ(answer.messages[1].end, MessageEnd::kEnd);
  EXPECT_EQ(answer.messages[3].end, MessageEnd::kCall);
  EXPECT_EQ(parse(qwen_ids("b<|im_end|>"), ChatMlBegin::kAnswer, Calls::kRead).messages[0].end,
            MessageEnd::kReturn);
  EXPECT_EQ(parse(qwen_ids("b"), ChatMlBegin::kAnswer, Calls::kRead).messages[0].end, MessageEnd::kNothing);
}

TEST(ChatMlParser, CallsAreTextWhereNoneAreOffered) {
  EXPECT_EQ(parsed(kCall + "<|im_end|>", ChatMlBegin::kAnswer, Calls::kText), "final(" + kCall + ")");
}

TEST(ChatMlParser, ReadsCallsOfOtherForms) {
  const auto call = [](const std::string& body) {
    return parsed("<tool_call>" + body + "</tool_call><|im_end|>");
  };
  EXPECT_EQ(call(R"({"arguments": {"a":1}, "name": "f"})"), R"(f({"a":1}))");
  EXPECT_EQ(call(R"({"name":"f"})"), "f({})");
  EXPECT_EQ(call(R"({"name":"f","parameters":{}})"), "f({})");
  EXPECT_EQ(call(R"({"name":"f","arguments":""})"), "f({})");
  EXPECT_EQ(call(R"({"name":"f","arguments":"{\"a\": \"ä\"}"})"), R"(f({"a": "ä"}))");
  EXPECT_EQ(call(R"({"name":"f","arguments": null })"), "f(null)");
  EXPECT_EQ(call(R"({"name":"f","arguments":{},"id":"7"})"), "f({})[text outside a call: '\"id\": \"7\"']");
  EXPECT_EQ(call(R"({"name":"f","arguments":{}} and)"), "f({})[text outside a call: 'and']");
  EXPECT_EQ(call(R"({"name":"\u0066","arguments":{"<think>":1}})"), R"(f({"<think>":1}))");
}

TEST(ChatMlParser, RecoversFromMistakes) {
  EXPECT_EQ(parsed("<think>\nHm.\n<|im_end|>"), "reasoning(Hm.)[no </think>]");
  EXPECT_EQ(parsed("Hm.", ChatMlBegin::kReasoning), "reasoning(Hm.)[no </think>]");
  EXPECT_EQ(parsed("a</think>b<|im_end|>"), "final(ab)[</think> without <think>]");
  EXPECT_EQ(parsed("a<think>b</think>c<|im_end|>"), "final(a)[<think> after text]reasoning(b)final(c)");
  EXPECT_EQ(parsed("<think>a <tool_call> <think> b</think>c<|im_end|>"),
            "reasoning(a <tool_call> <think> b)final(c)");
  EXPECT_EQ(parsed("<tool_call>\nf(1)\n</tool_call><|im_end|>"), "final(\nf(1)\n)[a call without a name]");
  EXPECT_EQ(parsed("<tool_call>{\"arguments\": {}}</tool_call>"),
            "final({\"arguments\": {}})[a call without a name]");
  EXPECT_EQ(parsed("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1"),
            "f({\"a\": 1)[an incomplete call]");
  EXPECT_EQ(parsed("<tool_call>{\"name\": \"f\", \"argu"),
            "f()[an incomplete call; text outside a call: '\"argu']");
  EXPECT_EQ(parsed("<tool_call>{\"name\": \"f\"}" + kCall + "<|im_end|>"),
            "f({})[no </tool_call>]f({\"a\": [1, \"}\"]})");
  EXPECT_EQ(parsed("<tool_call>{\"name\": \"f\"}<|im_end|>"), "f({})[no </tool_call>]");
  EXPECT_EQ(parsed(kCall + "\nDone.<|im_end|>"), "f({\"a\": [1, \"}\"]})final(Done.)[text after a call]");
  EXPECT_EQ(parsed("a<|im_start|>b<|im_end|>"), "final(ab)[<|im_start|> has no meaning here]");
  EXPECT_EQ(parsed("a</tool_call>b"), "final(a</tool_call>b)");
}

// Byte by byte, so that characters and the parts of a call are split.
TEST(ChatMlParser, DoesNotDependOnWhereTokensEnd) {
  const std::string text = "<think>\n\nÄ👍\n\nx\n</think>\n\n\nJä 👍\n" + kCall +
                           "\n<tool_call>{\"name\": \"gä\", "
                           "\"arguments\": {\"x\": \"Ö👍\\\"\"}}</tool_call><|im_end|>";
  const std::string want = parsed(text);
  EXPECT_EQ(want, "reasoning(Ä👍\n\nx)text(Jä 👍)f({\"a\": [1, \"}\"]})gä({\"x\": \"Ö👍\\\"\"})");
  std::vector<int32_t> bytes;
  for (size_t at = 0; at < text.size();) {
    size_t size = 1;
    for (const char* token : {"<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_end|>"})
      if (text.compare(at, std::string_view(token).size(), token) == 0) size = std::string_view(token).size();
    for (const int32_t id : qwen_ids(text.substr(at, size))) bytes.push_back(id);
    at += size;
  }
  EXPECT_EQ(shown(parse(bytes, ChatMlBegin::kAnswer, Calls::kRead)), want);
  // Truncated anywhere, an answer loses no text that was already sent, and nothing fails.
  for (size_t n = 0; n < bytes.size(); ++n)
    parse({bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n)}, ChatMlBegin::kAnswer,
          Calls::kRead);
}

TEST(ChatMlParser, AnyTokens) {
  Random random(7);
  const auto below = [&](int64_t n) { return static_cast<int32_t>(random.integer(0, n - 1)); };
  const ChatMl::Tokens t = chatml().tokens();
  const int32_t frame[] = {t.start, t.end, t.think, t.end_think, t.call, t.end_call};
  for (int i = 0; i < 2000; ++i) {
    std::vector<int32_t> ids;
    for (int n = below(40); n > 0; --n)
      ids.push_back(below(3) ? below(qwen_tokenizer().vocab_size() + 2) : frame[below(6)]);
    parse(ids, below(2) ? ChatMlBegin::kAnswer : ChatMlBegin::kReasoning,
          below(4) ? Calls::kRead : Calls::kText);
  }
}

}  // namespace
}  // namespace sluice
