// Structured output: from what an answer must match to the filter of its tokens.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "grammar/grammar.h"
#include "serve/token_filter.h"
#include "text/final_gate.h"

namespace sluice::apps {

using MakeFilter = std::function<std::shared_ptr<TokenFilter>()>;  // one for each answer; from any thread

// What matches.
enum class Structured : uint8_t {
  kFinalMessage,  // of a chat: analysis before it is free
  kAnswer,        // from its first token on
};

// Of one model. Any number of threads may use it.
class StructuredOutput {
 public:
  StructuredOutput(const Harmony& harmony, int64_t vocab);
  // As GrammarCompiler::compile(), on the thread that calls.
  Result<MakeFilter> filters(const GrammarSource& source, Structured what) const;

 private:
  Harmony harmony_;
  std::unique_ptr<GrammarCompiler> compiler_;
  std::shared_ptr<const std::vector<uint32_t>> analysis_;  // the tokens of its text, and its end
};

}  // namespace sluice::apps
