// Reads the structure that an answer must match: response_format, and the equivalent fields of vLLM, llama.cpp and SGLang.
#pragma once
#include <string_view>

#include "server/requests/fields.h"
#include "server/requests/request.h"

namespace sluice {

// `body` is the text that `fields` were parsed from; unlike `fields`, it has the properties of schemas in the client's order. It is an error
// if more than one field requests a structure.
void read_structure(ApiFields* fields, std::string_view body, ApiRequest* out);
// Reads `text.format` of /v1/responses.
void read_text_format(const JsonAt& at, ApiFields* fields, std::string_view body, ApiRequest* out);

}  // namespace sluice
