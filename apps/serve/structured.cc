#include "apps/serve/structured.h"

#include <algorithm>
#include <utility>

namespace sluice::apps {
namespace {

void set(std::span<uint32_t> bits, int32_t id) { bits[static_cast<size_t>(id) / 32] |= 1u << (id % 32); }

class AnswerFilter final : public TokenFilter {
 public:
  explicit AnswerFilter(const Grammar& grammar) : matcher_(grammar) {}
  void allowed(std::span<uint32_t> bits) override { matcher_.allowed(bits); }
  void accept(int32_t id) override { (void)matcher_.accept(id); }  // of a wrong one: the answer ends

 private:
  GrammarMatcher matcher_;
};

class FinalMessageFilter final : public TokenFilter {
 public:
  FinalMessageFilter(const Grammar& grammar, FinalMessageGate gate,
                     std::shared_ptr<const std::vector<uint32_t>> analysis)
      : content_(grammar), gate_(std::move(gate)), analysis_(std::move(analysis)) {}

  void allowed(std::span<uint32_t> bits) override {
    if (gate_.place() == FinalMessageGate::Place::kFinal) return content_.allowed(bits);
    if (gate_.place() == FinalMessageGate::Place::kAnalysis)
      return void(std::copy(analysis_->begin(), analysis_->end(), bits.begin()));
    std::fill(bits.begin(), bits.end(), 0u);
    for (const int32_t id : gate_.next()) set(bits, id);
  }
  void accept(int32_t id) override {
    if (gate_.place() == FinalMessageGate::Place::kFinal) return content_.accept(id);
    gate_.accept(id);
  }

 private:
  AnswerFilter content_;
  FinalMessageGate gate_;
  std::shared_ptr<const std::vector<uint32_t>> analysis_;
};

}  // namespace

StructuredOutput::StructuredOutput(const Harmony& harmony, int64_t vocab)
    : harmony_(harmony),
      compiler_(std::make_unique<GrammarCompiler>(harmony.tokenizer(), vocab,
                                                  *harmony.tokenizer().id_of("<|return|>"))) {
  const Tokenizer& tokenizer = harmony.tokenizer();
  std::vector<uint32_t> bits(static_cast<size_t>((vocab + 31) / 32));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    if (!tokenizer.is_special(id) && !tokenizer.piece(id).empty()) set(bits, id);
  set(bits, *tokenizer.id_of("<|end|>"));
  analysis_ = std::make_shared<const std::vector<uint32_t>>(std::move(bits));
}

Result<MakeFilter> StructuredOutput::filters(const GrammarSource& source, Structured what) const {
  auto grammar = compiler_->compile(source);
  if (!grammar.ok()) return grammar.status();
  if (what == Structured::kAnswer)
    return MakeFilter(
        [grammar = std::move(grammar).value()] { return std::make_shared<AnswerFilter>(grammar); });
  auto gate = FinalMessageGate::from(harmony_);
  if (!gate.ok()) return gate.status();
  return MakeFilter(
      [grammar = std::move(grammar).value(), gate = std::move(gate).value(), analysis = analysis_] {
        return std::make_shared<FinalMessageFilter>(grammar, gate, analysis);
      });
}

}  // namespace sluice::apps
