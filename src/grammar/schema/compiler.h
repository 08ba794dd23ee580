// Compiles a JSON schema to a grammar.
#pragma once
#include <string>

#include "base/status.h"
#include "grammar/program.h"
#include "grammar/work.h"

namespace sluice {

// Every text of the grammar is JSON and valid under the schema, but not every valid text is in the grammar: members follow the schema's
// order, undeclared members appear only if the schema asks for them, and numbers have few digits (docs/structured-output.md). The message
// of kInvalidArgument names what is not supported, or says that no value is valid. `object`: only objects, even if the schema allows more.
Result<Program> compile_schema(const std::string& text, bool object, Work* work);

// Leaves that most grammars use. All grammars share one instance, so that the masks are computed once.
struct CommonLeaves {
  LeafPointer any_string, any_scalar, number, integer, boolean, null;
  LeafPointer blanks, open_object, close_object, open_array, close_array, comma, comma_in_blanks, colon;
  static const CommonLeaves& get();
};

}  // namespace sluice
