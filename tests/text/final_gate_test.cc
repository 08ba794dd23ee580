#include "text/final_gate.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace sluice {
namespace {

using Place = FinalMessageGate::Place;

class FinalGate : public ::testing::Test {
 protected:
  const Tokenizer tokenizer_ =
      Tokenizer::load(SLUICE_SOURCE_DIR "/tests/data/tokenizer/pattern_o200k.json").value();
  FinalMessageGate gate_ = FinalMessageGate::from(Harmony::from(tokenizer_).value()).value();

  // Whether every token of it may come, up to where the gate opens to text.
  bool takes(std::string_view text) {
    std::vector<int32_t> ids;
    EXPECT_TRUE(tokenizer_.encode(text, Specials::kParse, &ids).ok());
    for (const int32_t id : ids) {
      if (gate_.place() == Place::kFinal) return false;
      const auto next = gate_.next();
      if (gate_.place() == Place::kHeader && std::find(next.begin(), next.end(), id) == next.end())
        return false;
      gate_.accept(id);
    }
    return true;
  }
};

TEST_F(FinalGate, LeadsThroughAnalysisToTheFinalMessage) {
  EXPECT_EQ(gate_.next().size(), 1u);
  EXPECT_TRUE(takes("<|channel|>analysis<|message|>"));
  EXPECT_EQ(gate_.place(), Place::kAnalysis);
  EXPECT_TRUE(takes("Anything: final, <message>.<|end|>"));
  EXPECT_EQ(gate_.place(), Place::kHeader);
  EXPECT_TRUE(takes("<|start|>assistant<|channel|>final<|message|>"));
  EXPECT_EQ(gate_.place(), Place::kFinal);
}

TEST_F(FinalGate, NeedsNoAnalysis) {
  EXPECT_TRUE(takes("<|channel|>final<|message|>"));
  EXPECT_EQ(gate_.place(), Place::kFinal);
}

TEST_F(FinalGate, HasNoOtherWay) {
  const FinalMessageGate fresh = gate_;
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

}  // namespace
}  // namespace sluice
