// Structured output: from what an answer must match to the filter of its tokens.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "engine/token_filter.h"
#include "grammar/grammar.h"
#include "server/requests/request.h"
#include "text/chat_format.h"

namespace sluice {

using MakeFilter = std::function<
    std::shared_ptr<TokenFilter>()>;  // one for each answer; from any thread; empty: none is wanted

// Of one model. Any number of threads may use it.
class StructuredOutput {
 public:
  // `format` outlives it.
  StructuredOutput(const ChatFormat& format, int64_t vocab);
  // Whether filters() compiles something for it.
  static bool filters_of(const ApiRequest& request);
  // What the request asks for: a structure of its text, a call that must be made, arguments that must match. Compiles on the thread
  // that calls, and gives up once it is asked to stop. Errors name the field.
  Result<MakeFilter, ApiError> filters(const ApiRequest& request, const std::stop_token& stop = {}) const;

 private:
  Result<MakeFilter, ApiError> of_chat(const ApiRequest& request, std::optional<Grammar> text,
                                       const std::stop_token& stop) const;
  Result<Grammar, ApiError> compile(const GrammarSource& source, const std::string& field,
                                    const std::stop_token& stop) const;
  Result<std::optional<Grammar>, ApiError> arguments_of(const FunctionTool& function, size_t number,
                                                        const std::stop_token& stop) const;

  const ChatFormat& format_;
  std::unique_ptr<GrammarCompiler> compiler_;
  std::shared_ptr<const std::vector<uint32_t>> words_,
      frame_;  // the tokens of free text, and those that no text has
};

}  // namespace sluice
