// What the answers of `sluice run` must match.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "server/structured.h"

namespace sluice::apps {

struct AnswerForm {
  std::optional<ResponseFormat> told;  // of which the model is told
  MakeFilter make_filter;              // empty: any text will do
  // Of one answer.
  std::shared_ptr<TokenFilter> filter() const { return make_filter ? make_filter() : nullptr; }
};

// `source`: a JSON schema, which begins with '{', or the name of a file that has one. `vocab`: logits of the model, as many as it has
// tokens or more. Compiles, which takes seconds where there are many tokens. kInvalidArgument, kIo: begins with --json-schema.
Result<AnswerForm> answer_form(const std::string& source, const ChatFormat& format,
                               std::optional<bool> thinking, int64_t vocab);

}  // namespace sluice::apps
