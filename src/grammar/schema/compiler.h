// Compiles a JSON schema to a grammar.
#pragma once
#include <string>

#include "base/status.h"
#include "grammar/program.h"
#include "grammar/work.h"

namespace sluice {

// Every text of the grammar is JSON and valid under the schema. The converse does not hold: members follow the schema's order, other
// members appear only if the schema requires them, and unconstrained values are narrow (docs/structured-output.md). kInvalidArgument
// names what is not supported, or says that no value is valid. `object`: values must be objects, even if the schema allows other types.
Result<Program> compile_schema(const std::string& text, bool object, Work* work);

// Leaves that most grammars share, so that their masks are computed once.
struct CommonLeaves {
  LeafPointer any_string, any_scalar, number, integer, boolean, null;
  LeafPointer blanks, open_object, close_object, open_array, close_array, comma, comma_in_blanks, colon;
  static const CommonLeaves& get();
};

}  // namespace sluice
