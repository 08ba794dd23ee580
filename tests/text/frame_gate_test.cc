#include "text/frame_gate.h"

#include <algorithm>

#include "harness/chat/gate_walk.h"
#include "harness/chatml.h"

namespace sluice {
namespace {

using Content = ChatGate::Content;

class Walk : public GateWalk {
 public:
  Walk(ChatMlThinking thinking, std::optional<bool> said, const AnswerEnds& ends)
      : GateWalk(format_of(thinking), ends, said) {}

 private:
  static const ChatMl& format_of(ChatMlThinking thinking) {
    static const ChatMl all[] = {chatml(ChatMlThinking::kSwitch), chatml(ChatMlThinking::kAlways),
                                 chatml(ChatMlThinking::kNever)};
    return all[static_cast<size_t>(thinking)];
  }
};

std::string call(const std::string& name, const std::string& arguments = "!") {
  return "<tool_call>\n{\"name\": \"" + name + "\", \"arguments\": ||" + arguments + "||}\n</tool_call>";
}

TEST(FrameGate, LeadsThroughReasoningToTheText) {
  const Walk fresh(ChatMlThinking::kSwitch, {}, {.held_text = true});
  for (const char* text :
       {"<think>\nAny, \"all\".\n</think>\n\ntext!<|im_end|>", "text!<|im_end|>", "!<|im_end|>"}) {
    Walk walk = fresh;
    EXPECT_TRUE(walk.takes(text)) << text;
    EXPECT_TRUE(walk.done()) << text;
  }
  for (const char* text : {"text<|im_end|>", "<tool_call>", "</think>", "<think>a<|im_end|>",
                           "<think>a<tool_call>", "<think>a</think>\n\n<think>", "<think>a</think><|im_end|>",
                           "<think>a</think>b", "a<think>", "a!<tool_call>", "<|im_start|>", "<|im_end|>"}) {
    Walk walk = fresh;
    EXPECT_FALSE(walk.takes(text)) << text;
  }
}

TEST(FrameGate, BeginsWherePromptsEnd) {
  Walk opened(ChatMlThinking::kAlways, {}, {.held_text = true});
  EXPECT_EQ(opened.content(), Content::kFree);
  EXPECT_TRUE(opened.takes("a\n</think>\n\n!<|im_end|>"));
  for (const auto& [thinking, said] : {std::pair(ChatMlThinking::kSwitch, std::optional(false)),
                                       std::pair(ChatMlThinking::kNever, std::optional<bool>())}) {
    const Walk fresh(thinking, said, {.held_text = true});
    EXPECT_EQ(fresh.content(), Content::kText);
    EXPECT_FALSE(Walk(fresh).takes("<think>"));
    EXPECT_TRUE(Walk(fresh).takes("!<|im_end|>"));
  }
}

TEST(FrameGate, LeadsToCalls) {
  const Walk fresh(ChatMlThinking::kSwitch, {}, {.final_message = false, .functions = {"add", "adder", "f"}});
  for (const std::string& before : {std::string(), std::string("<think>\nHm.\n</think>\n\n")}) {
    size_t function = 0;
    for (const char* name : {"add", "adder", "f"}) {
      Walk walk = fresh;
      EXPECT_TRUE(walk.takes(before + "<tool_call>\n{\"name\": \"" + name + "\", \"arguments\": "));
      EXPECT_EQ(walk.content(), Content::kArguments);
      EXPECT_EQ(walk.function(), function++);
      EXPECT_TRUE(walk.takes("{}!||}\n</tool_call>"));
      EXPECT_TRUE(Walk(walk).takes("<|im_end|>"));
      EXPECT_TRUE(walk.takes("\n" + call("f") + "<|im_end|>"));
      EXPECT_TRUE(walk.done());
    }
  }
  for (const std::string& text :
       {std::string("text"), std::string("<|im_end|>"), call("g"), call("ad"), call("f") + "text",
        call("f") + "\n<|im_end|>", std::string("<tool_call>{"), std::string("<think>a</think>\n\ntext")})
    EXPECT_FALSE(Walk(fresh).takes(text)) << text;
}

TEST(FrameGate, LeadsToEither) {
  // Free text may precede calls; constrained text replaces calls.
  const Walk free(ChatMlThinking::kSwitch, false, {.functions = {"f"}, .many_calls = false});
  EXPECT_TRUE(Walk(free).takes("a!\n" + call("f") + "<|im_end|>"));
  EXPECT_TRUE(Walk(free).takes("a!<|im_end|>"));
  EXPECT_FALSE(Walk(free).takes(call("f") + "\n<tool_call>"));
  const Walk held(ChatMlThinking::kSwitch, false, {.functions = {"f"}, .held_text = true});
  EXPECT_TRUE(Walk(held).takes(call("f") + "\n" + call("f") + "<|im_end|>"));
  EXPECT_TRUE(Walk(held).takes("a!<|im_end|>"));
  EXPECT_FALSE(Walk(held).takes("a!<tool_call>"));
}

TEST(FrameGate, FreeArgumentsEndWithTheCall) {
  Walk walk(ChatMlThinking::kNever, {},
            {.final_message = false, .functions = {"f"}, .free_arguments = {true}});
  EXPECT_TRUE(
      walk.takes("<tool_call>\n{\"name\": \"f\", \"arguments\": ||{\"a\": 1}}\n!</tool_call><|im_end|>"));
}

TEST(FrameGate, ACallBegunByThePromptIsTheOnlyOne) {
  Walk walk(ChatMlThinking::kSwitch, {}, {.final_message = false, .functions = {"f"}, .begun = true});
  EXPECT_EQ(walk.content(), Content::kArguments);
  EXPECT_TRUE(walk.takes("{}!||}\n</tool_call>"));
  EXPECT_FALSE(Walk(walk).takes("\n<tool_call>"));
  EXPECT_TRUE(walk.takes("<|im_end|>"));
}

TEST(FrameGate, ContinuesAText) {
  for (const ChatMlThinking thinking :
       {ChatMlThinking::kSwitch, ChatMlThinking::kAlways, ChatMlThinking::kNever}) {
    const Walk fresh(thinking, {}, {.functions = {"f"}, .many_calls = false, .continues = true});
    EXPECT_EQ(fresh.content(), Content::kText);
    EXPECT_FALSE(Walk(fresh).takes("<think>"));
    EXPECT_TRUE(Walk(fresh).takes("!<|im_end|>"));
    EXPECT_TRUE(Walk(fresh).takes("a\n" + call("f") + "<|im_end|>"));
    EXPECT_FALSE(Walk(fresh).takes(call("f") + "\n<tool_call>"));
  }
}

TEST(FrameGate, NeedsAnEnd) { EXPECT_FALSE(chatml().gate({.final_message = false}, {}).ok()); }

}  // namespace
}  // namespace sluice
