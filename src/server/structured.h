// Structured output: compiles the structure that an answer must match into a token filter.
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

// Each call makes the filter of one more choice. Thread-safe. Empty: the output is unconstrained.
using MakeFilter = std::function<std::shared_ptr<TokenFilter>()>;

// Compiles token filters for one model. Thread-safe.
class StructuredOutput {
 public:
  // `format` must outlive this object.
  StructuredOutput(const ChatFormat& format, int64_t vocab);
  // Whether filters() compiles a grammar for the request.
  static bool filters_of(const ApiRequest& request);
  // The filters enforce the structure of the text, required calls, and the schemas of the calls' arguments. Compiles on the calling thread
  // and gives up once `stop` is requested. Errors name the request's field.
  Result<MakeFilter, ApiError> filters(const ApiRequest& request, const std::stop_token& stop = {}) const;

 private:
  Result<MakeFilter, ApiError> of_chat(const ApiRequest& request, std::optional<Grammar> text,
                                       const std::stop_token& stop) const;
  Result<Grammar, ApiError> compile(const GrammarSource& source, const std::string& field,
                                    const std::stop_token& stop) const;
  Result<std::optional<Grammar>, ApiError> arguments_of(const FunctionTool& function, size_t number,
                                                        const std::stop_token& stop) const;

  const ChatFormat& format_;
  std::unique_ptr<GrammarCompiler> compiler_;           // null: the format has no end_token()
  std::shared_ptr<const std::vector<uint32_t>> words_;  // tokens allowed in unconstrained content
  std::shared_ptr<const std::vector<uint32_t>> frame_;  // tokens of the chat format, which are never content
};

}  // namespace sluice
