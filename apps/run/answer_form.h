// The structure that answers of `sluice run` must match.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "server/structured.h"

namespace sluice::apps {

struct AnswerForm {
  std::optional<ResponseFormat> told;  // the schema with its description, for the prompt
  MakeFilter make_filter;              // empty: answers are unconstrained
  // Makes the filter of one answer.
  std::shared_ptr<TokenFilter> filter() const { return make_filter ? make_filter() : nullptr; }
};

// `source`: a JSON schema, which begins with '{', or the name of a file with a JSON schema. `vocab`: length of the model's logits row.
// Compiling takes seconds for large vocabularies. The messages of errors begin with --json-schema.
Result<AnswerForm> answer_form(const std::string& source, const ChatFormat& format,
                               std::optional<bool> thinking, int64_t vocab);

}  // namespace sluice::apps
