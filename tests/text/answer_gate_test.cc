#include "text/answer_gate.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace sluice {
namespace {

using Place = AnswerGate::Place;

class AnswerGateTest : public ::testing::Test {
 protected:
  const Tokenizer tokenizer_ =
      Tokenizer::load(SLUICE_SOURCE_DIR "/tests/data/tokenizer/pattern_o200k.json").value();
  const Harmony harmony_ = Harmony::from(tokenizer_).value();
  AnswerGate gate_ = AnswerGate::from(harmony_, {}).value();

  // Whether the gate allows every token of `text`, up to the place where it opens to text.
  bool takes(std::string_view text) {
    std::vector<int32_t> ids;
    EXPECT_TRUE(tokenizer_.encode(text, Specials::kParse, &ids).ok());
    for (const int32_t id : ids) {
      if (gate_.place() == Place::kFinal || gate_.place() == Place::kCall) return false;
      const auto next = gate_.next();
      if (gate_.place() == Place::kHeader && std::find(next.begin(), next.end(), id) == next.end())
        return false;
      gate_.accept(id);
    }
    return true;
  }
};

TEST_F(AnswerGateTest, ContinuesAFinalMessage) {
  EXPECT_EQ(AnswerGate::from(harmony_, {.functions = {"f"}, .continues = true}).value().place(),
            Place::kFinal);
}

TEST_F(AnswerGateTest, LeadsThroughAnalysisToTheFinalMessage) {
  EXPECT_EQ(gate_.next().size(), 1u);
  EXPECT_TRUE(takes("<|channel|>analysis<|message|>"));
  EXPECT_EQ(gate_.place(), Place::kAnalysis);
  EXPECT_TRUE(takes("Anything: final, <message>.<|end|>"));
  EXPECT_EQ(gate_.place(), Place::kHeader);
  EXPECT_TRUE(takes("<|start|>assistant<|channel|>final<|message|>"));
  EXPECT_EQ(gate_.place(), Place::kFinal);
}

TEST_F(AnswerGateTest, NeedsNoAnalysis) {
  EXPECT_TRUE(takes("<|channel|>final<|message|>"));
  EXPECT_EQ(gate_.place(), Place::kFinal);
}

TEST_F(AnswerGateTest, AllowsNothingElse) {
  const AnswerGate fresh = gate_;
  for (const char* way : {"<|channel|>commentary", "<|channel|>analysis to=functions.f",
                          "<|channel|>final <|constrain|>", "<|message|>", "text", "<|start|>", "<|return|>",
                          " to=functions.f<|channel|>", "<|channel|>analysis<|message|>a<|end|><|return|>",
                          "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis",
                          "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary",
                          "<|channel|>analysis<|message|>a<|end|><|start|>assistant to=functions.f",
                          "<|channel|>analysis<|message|>a<|end|><|start|>user"}) {
    gate_ = fresh;
    EXPECT_FALSE(takes(way)) << way;
  }
}

TEST_F(AnswerGateTest, LeadsToCalls) {
  const AnswerGate fresh =
      AnswerGate::from(harmony_, {.final_message = false, .functions = {"add", "adder", "f"}}).value();
  const std::string analysis = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant";
  for (const std::string& before : {std::string(), analysis}) {
    size_t function = 0;
    for (const char* name : {"add", "adder", "f"}) {
      gate_ = fresh;
      EXPECT_TRUE(
          takes(before + "<|channel|>commentary to=functions." + name + " <|constrain|>json<|message|>"));
      EXPECT_EQ(gate_.place(), Place::kCall);
      EXPECT_EQ(gate_.function(), function++);
    }
  }
  for (const char* way :
       {"<|channel|>final", "<|channel|>commentary<|message|>", "<|channel|>commentary to=functions.g",
        "<|channel|>commentary to=functions.add<|message|>"}) {
    gate_ = fresh;
    EXPECT_FALSE(takes(way)) << way;
  }
}

TEST_F(AnswerGateTest, LeadsToEither) {
  const AnswerGate fresh = AnswerGate::from(harmony_, {.functions = {"f"}}).value();
  gate_ = fresh;
  EXPECT_TRUE(takes("<|channel|>final<|message|>"));
  EXPECT_EQ(gate_.place(), Place::kFinal);
  gate_ = fresh;
  EXPECT_TRUE(takes("<|channel|>commentary to=functions.f <|constrain|>json<|message|>"));
  EXPECT_EQ(gate_.place(), Place::kCall);
}

TEST_F(AnswerGateTest, NeedsAnEnd) {
  EXPECT_FALSE(AnswerGate::from(harmony_, {.final_message = false}).ok());
}

}  // namespace
}  // namespace sluice
