// Leaves of the values that have no parts: strings, numbers, booleans, null, and values that are listed.
#pragma once
#include <optional>
#include <vector>

#include "grammar/leaf.h"
#include "grammar/schema/compiler.h"
#include "grammar/schema/merge.h"

namespace sluice {

constexpr int64_t kTextByteSteps = 4;  // of a text that is listed, for each byte of it

// The strings that `m` allows. An empty leaf: none.
Result<LeafPointer> string_leaf(const Merged& m, SchemaDocument* document, Work* work);
// The values of strings that `m` allows, without their lengths.
Result<Dfa> string_values(const Merged& m, SchemaDocument* document, Work* work);
Result<LeafPointer> number_leaf(const Merged& m, Work* work);
// Of "enum" and "const": those that are valid by all of `schemas`.
std::vector<const Json*> listed_values(const Merged& m, const Schemas& schemas,
                                       const SchemaDocument& document, Work* work);
std::string json_text(const Json& value);

}  // namespace sluice
