// A build without xgrammar: a grammar is an error, and nothing else changes.
#include "grammar/grammar.h"

namespace sluice {

struct Grammar::Compiled {};
struct GrammarCompiler::State {};
struct GrammarMatcher::State {};

GrammarCompiler::GrammarCompiler(const Tokenizer&, int64_t, int32_t) {}
GrammarCompiler::~GrammarCompiler() = default;

Result<Grammar> GrammarCompiler::compile(const GrammarSource&) {
  return unsupported(
      "structured output: wanted a build with xgrammar (-DSLUICE_XGRAMMAR=ON, which fetches it from PyPI), "
      "found one without");
}

GrammarMatcher::GrammarMatcher(const Grammar&) {}
GrammarMatcher::~GrammarMatcher() = default;
GrammarMatcher::GrammarMatcher(GrammarMatcher&&) noexcept = default;
GrammarMatcher& GrammarMatcher::operator=(GrammarMatcher&&) noexcept = default;
void GrammarMatcher::allowed(std::span<uint32_t>) {}
bool GrammarMatcher::accept(int32_t) { return false; }
bool GrammarMatcher::done() const { return true; }

}  // namespace sluice
