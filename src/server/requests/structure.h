// What a client says an answer must match: response_format, and the fields of vLLM, llama.cpp and SGLang that ask for the same.
#pragma once
#include <string_view>

#include "server/requests/fields.h"
#include "server/requests/request.h"

namespace sluice {

// `body` is what `fields` were read from: the order of a schema's properties stands there alone. At most one of the fields may ask
// for something.
void read_structure(ApiFields* fields, std::string_view body, ApiRequest* out);
// Of /v1/responses: `text.format`.
void read_text_format(const JsonAt& at, ApiFields* fields, std::string_view body, ApiRequest* out);

}  // namespace sluice
