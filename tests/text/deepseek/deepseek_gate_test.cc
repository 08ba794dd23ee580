// What DeepSeek's formats allow. The gate itself is tested by tests/text/frame_gate_test.cc.
#include "harness/chat/deepseek.h"
#include "harness/chat/gate_walk.h"

namespace sluice {
namespace {

using Model = DeepSeekModel;

const std::string kEnding = "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>", kTurnEnd = "<｜end▁of▁sentence｜>",
                  kOpening = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>";

GateWalk walk(Model model, const AnswerEnds& ends, std::optional<bool> thinking = {}) {
  return {deepseek(model), ends, thinking};
}
bool takes(GateWalk gate, const std::string& text) { return gate.takes(text); }

// A call, from its first frame token to its last. "||" is not part of the text; it only separates tokens.
std::string call(Model model, const std::string& name, const std::string& arguments = "!") {
  if (model == Model::kV31) return name + "<｜tool▁sep｜>" + arguments + "<｜tool▁call▁end｜>";
  return "function<｜tool▁sep｜>" + name + "\n```json\n||" + arguments + "||\n```<｜tool▁call▁end｜>";
}

TEST(DeepSeekGate, LeadsThroughReasoningToTheText) {
  const AnswerEnds held{.held_text = true};
  EXPECT_TRUE(takes(walk(Model::kV3, held), "text!" + kTurnEnd));
  EXPECT_FALSE(takes(walk(Model::kV3, held), "text" + kTurnEnd));
  const GateWalk may = walk(Model::kR1, held);
  EXPECT_TRUE(takes(may, "<think>\nAny.\n</think>||\n\n||text!" + kTurnEnd));
  EXPECT_TRUE(takes(may, "text!" + kTurnEnd));
  EXPECT_FALSE(takes(may, "<think>a</think>text"));
  EXPECT_FALSE(takes(may, "<think>a" + kTurnEnd));
  const GateWalk opened = walk(Model::kR1Opened, held);
  EXPECT_EQ(opened.content(), ChatGate::Content::kFree);
  EXPECT_TRUE(takes(opened, "Any.\n</think>||\n\n||text!" + kTurnEnd));
  EXPECT_TRUE(takes(walk(Model::kR1Opened, held, false), "text!" + kTurnEnd));
  const GateWalk thinks = walk(Model::kV31, held, true);
  EXPECT_EQ(thinks.content(), ChatGate::Content::kFree);
  EXPECT_TRUE(takes(thinks, "Any.</think>text!" + kTurnEnd));
  EXPECT_TRUE(takes(walk(Model::kV31, held), "text!" + kTurnEnd));
  EXPECT_FALSE(takes(walk(Model::kV31, held), "<think>"));
  for (const char* token : {"<｜User｜>", "<｜Assistant｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>",
                            "<｜begin▁of▁sentence｜>"})
    for (const Model model : {Model::kV3, Model::kR1, Model::kV31})
      EXPECT_FALSE(takes(walk(model, held), "a" + std::string(token))) << token;
}

TEST(DeepSeekGate, ContinuesAText) {
  for (const Model model : {Model::kV3, Model::kR1, Model::kR1Opened, Model::kV31}) {
    const GateWalk fresh = walk(model, {.continues = true}, true);
    EXPECT_EQ(fresh.content(), ChatGate::Content::kText);
    EXPECT_TRUE(takes(fresh, "a!" + kTurnEnd));
    EXPECT_EQ(takes(fresh, "<think>"), model == Model::kV3);  // where it is text
  }
}

TEST(DeepSeekGate, LeadsToCalls) {
  for (const Model model : {Model::kV3, Model::kR1, Model::kV31}) {
    const GateWalk fresh = walk(model, {.final_message = false, .functions = {"add", "adder", "f"}});
    const std::string next = model == Model::kV31 ? "<｜tool▁call▁begin｜>" : "||\n||<｜tool▁call▁begin｜>";
    size_t function = 0;
    for (const char* name : {"add", "adder", "f"}) {
      GateWalk gate = fresh;
      const std::string whole = call(model, name);
      EXPECT_TRUE(gate.takes(kOpening + whole.substr(0, whole.find('!'))));
      EXPECT_EQ(gate.content(), ChatGate::Content::kArguments);
      EXPECT_EQ(gate.function(), function++);
      EXPECT_TRUE(gate.takes(whole.substr(whole.find('!'))));
      EXPECT_TRUE(takes(gate, kEnding));
      EXPECT_FALSE(takes(gate, kTurnEnd));
      EXPECT_TRUE(gate.takes(next + call(model, "f") + kEnding));
      EXPECT_TRUE(gate.done());
    }
    for (const std::string& text :
         {std::string("text"), kTurnEnd, kOpening + call(model, "g"), kOpening + call(model, "ad"),
          kOpening + call(model, "f") + "text", kOpening + call(model, "f", "a") + kEnding})
      EXPECT_FALSE(takes(fresh, text)) << text;
    const GateWalk one = walk(model, {.functions = {"f"}, .many_calls = false});
    EXPECT_TRUE(takes(one, "a!" + kOpening + call(model, "f") + kEnding));
    EXPECT_FALSE(takes(one, kOpening + call(model, "f") + next));
  }
}

TEST(DeepSeekGate, FreeArgumentsEndWithTheCall) {
  const AnswerEnds free{.final_message = false, .functions = {"f"}, .free_arguments = {true}};
  EXPECT_TRUE(takes(walk(Model::kV31, free), kOpening + call(Model::kV31, "f", "{}\n!") + kEnding));
  // The fence is part of free content.
  EXPECT_TRUE(takes(walk(Model::kV3, free),
                    kOpening + "function<｜tool▁sep｜>f\n```json\n||{}\n```!<｜tool▁call▁end｜>" + kEnding));
}

TEST(DeepSeekGate, ACallBegunByThePromptIsTheOnlyOne) {
  for (const Model model : {Model::kV3, Model::kR1, Model::kR1Opened, Model::kV31}) {
    GateWalk gate = walk(model, {.final_message = false, .functions = {"f"}, .begun = true});
    EXPECT_EQ(gate.content(), ChatGate::Content::kArguments);
    EXPECT_TRUE(
        gate.takes(model == Model::kV31 ? "{}!<｜tool▁call▁end｜>" : "{}!||\n```<｜tool▁call▁end｜>"));
    EXPECT_FALSE(takes(gate, "\n"));
    EXPECT_TRUE(gate.takes(kEnding));
    EXPECT_TRUE(gate.done());
  }
}

TEST(DeepSeekGate, NeedsAnEnd) { EXPECT_FALSE(deepseek(Model::kV3).gate({.final_message = false}, {}).ok()); }

}  // namespace
}  // namespace sluice
