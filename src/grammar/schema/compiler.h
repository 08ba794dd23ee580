// From a JSON schema to a grammar of its answers.
#pragma once
#include <string>

#include "base/status.h"
#include "grammar/program.h"
#include "grammar/work.h"

namespace sluice {

// Every text of the grammar is JSON and valid by the schema. Not every valid value has a text: members stand in the order of the schema,
// others only where it asks for them, and what it says nothing about is narrow (docs/structured-output.md). kInvalidArgument names what
// cannot be kept, or that nothing is valid. `object`: values are objects, whatever the schema says.
Result<Program> compile_schema(const std::string& text, bool object, Work* work);

// Leaves that most grammars share, so that their masks are found once.
struct CommonLeaves {
  LeafPointer any_string, any_scalar, number, integer, boolean, null;
  LeafPointer blanks, open_object, close_object, open_array, close_array, comma, colon;
  static const CommonLeaves& get();
};

}  // namespace sluice
