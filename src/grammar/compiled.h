// The contents of a Grammar.
#pragma once
#include "grammar/grammar.h"
#include "grammar/parse.h"

namespace sluice {

struct Grammar::Compiled {
  CompiledGrammar grammar;
};

}  // namespace sluice
