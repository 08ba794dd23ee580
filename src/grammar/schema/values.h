// Leaves for scalars and for the values that "enum" and "const" list.
#pragma once
#include <optional>
#include <vector>

#include "grammar/leaf.h"
#include "grammar/schema/compiler.h"
#include "grammar/schema/merge.h"

namespace sluice {

constexpr int64_t kTextByteSteps = 4;  // cost of a listed text, per byte

// The strings that `m` allows. If it allows none, the leaf has an empty automaton.
Result<LeafPointer> string_leaf(const Merged& m, SchemaDocument* document, Work* work);
// The decoded strings that `m` allows, ignoring the length limits.
Result<Dfa> string_values(const Merged& m, SchemaDocument* document, Work* work);
Result<LeafPointer> number_leaf(const Merged& m, Work* work);
// Those values of "enum" and "const" that are valid under all of `schemas`.
std::vector<const Json*> listed_values(const Merged& m, const Schemas& schemas,
                                       const SchemaDocument& document, Work* work);
std::string json_text(const Json& value);

}  // namespace sluice
