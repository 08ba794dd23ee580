// Computes which tokens may come next in a text that must match a JSON schema, a regular expression or a grammar.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "base/status.h"
#include "text/tokenizer/tokenizer.h"

namespace sluice {

enum class GrammarKind : uint8_t {
  kJsonSchema,  // members follow the schema's order; undeclared members appear only if a keyword such as additionalProperties asks for them
  // Matches the whole text; ECMAScript syntax without back references, look-behinds and word boundaries.
  kRegex,
  kEbnf,    // GBNF, as in llama.cpp; the rule "root" matches the whole text
  kChoice,  // one of `choices`
};

struct GrammarSource {
  GrammarKind kind = GrammarKind::kJsonSchema;
  std::string text = {};
  std::vector<std::string> choices = {};  // kChoice: at least one, each non-empty
  bool object = false;  // kJsonSchema: the text must be an object, even if the schema allows other types
  bool operator==(const GrammarSource&) const = default;
};
GrammarSource any_json_object();
GrammarSource one_of_strings(std::span<const std::string> strings);

// Maximum size of a source text in bytes. All choices together may have as many bytes as a schema.
constexpr int64_t kSchemaBytesMax = 512 << 10, kPatternBytesMax = 16 << 10, kEbnfBytesMax = 64 << 10;

// A grammar compiled for one vocabulary. Immutable and cheap to copy.
class Grammar {
 public:
  struct Compiled;

 private:
  friend class GrammarCompiler;
  friend class GrammarMatcher;
  explicit Grammar(std::shared_ptr<const Compiled> compiled) : compiled_(std::move(compiled)) {}
  std::shared_ptr<const Compiled> compiled_;
};

// Compiles grammars against a tokenizer's vocabulary. Thread-safe. Caches recent results by source text.
class GrammarCompiler {
 public:
  // `vocab` is the length of a logits row and must be at least the tokenizer's number of ids. `end` is the token that ends a text. The
  // constructor is cheap, because only the first compile() sorts the vocabulary.
  GrammarCompiler(const Tokenizer& tokenizer, int64_t vocab, int32_t end);
  ~GrammarCompiler();
  GrammarCompiler(const GrammarCompiler&) = delete;
  GrammarCompiler& operator=(const GrammarCompiler&) = delete;

  // Takes at most a few seconds, because the number of steps is bounded, and returns soon after `stop` is requested. kInvalidArgument:
  // the source is malformed, uses an unsupported feature, matches no text, or takes too long to compile.
  Result<Grammar> compile(const GrammarSource& source, std::stop_token stop = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Matches one text against a grammar. Not thread-safe.
class GrammarMatcher {
 public:
  explicit GrammarMatcher(const Grammar& grammar);
  ~GrammarMatcher();
  GrammarMatcher(const GrammarMatcher& other);  // continues from the state of `other`
  GrammarMatcher(GrammarMatcher&&) noexcept;
  GrammarMatcher& operator=(GrammarMatcher&&) noexcept;

  // Sets bit id % 32 of word id / 32 if token `id` may come next; `bits` has (vocab + 31) / 32 words. The end token is allowed where the
  // text is complete; other special tokens are never allowed. Takes at most some tens of milliseconds and returns soon after `stop` is
  // requested. kInvalidArgument: no token is allowed, or the step limit is exceeded; every later call then fails, too.
  Status allowed(std::span<uint32_t> bits, std::stop_token stop = {});
  // kInvalidArgument: the token is not allowed here. After an error or after the end token, every call fails.
  Status accept(int32_t id, std::stop_token stop = {});
  bool done() const;  // the end token was accepted

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice
