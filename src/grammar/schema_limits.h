// Which JSON schemas are compiled: those whose answers are sure to match, in a time that is bounded.
#pragma once
#include "base/json.h"

namespace sluice {

constexpr int64_t kSubschemasMax = 1000;
constexpr int64_t kOptionalMax = 256;  // properties that an object does not require: their work is quadratic

// kInvalidArgument names the place. Refuses, besides what is too large, keywords at which the compiler would not look, for example
// "not", or others beside $ref, anyOf, oneOf and allOf. What it warns of is refused where it is compiled.
Status check_schema(const Json& schema, int64_t pattern_bytes_max);

}  // namespace sluice
