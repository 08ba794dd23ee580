// Which tokens may come next where a text must match a JSON schema, a regular expression or a grammar.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "text/tokenizer.h"

namespace sluice {

enum class GrammarKind : uint8_t {
  kJsonSchema,  // properties in the order of the schema, and no others where it does not ask for them; grammar/schema_limits.h
  kRegex,       // that the whole text matches; ECMAScript's syntax, without assertions and back references
  kEbnf,        // GBNF, as llama.cpp has it; the rule "root" is the whole text
};

struct GrammarSource {
  GrammarKind kind = GrammarKind::kJsonSchema;
  std::string text = {};
  bool operator==(const GrammarSource&) const = default;
};
GrammarSource any_json_object();
// One of these strings. Not empty, and none of them is.
GrammarSource one_of_strings(std::span<const std::string> strings);

// Bytes of a text, so that no text takes long to compile, or long at each token.
constexpr int64_t kSchemaBytesMax = 64 << 10, kPatternBytesMax = 512, kEbnfBytesMax = 8 << 10;

// A grammar over one vocabulary. Immutable and cheap to copy.
class Grammar {
 public:
  struct Compiled;

 private:
  friend class GrammarCompiler;
  friend class GrammarMatcher;
  explicit Grammar(std::shared_ptr<const Compiled> compiled) : compiled_(std::move(compiled)) {}
  std::shared_ptr<const Compiled> compiled_;
};

// Compiles against the bytes of a tokenizer's tokens. Any number of threads may use it. It keeps what was compiled lately, up to
// 256 MB, and finds it by its text.
class GrammarCompiler {
 public:
  // `vocab` logits a row, at least as many as the tokenizer has ids; `end` is the token that ends a text. Takes no time: the first
  // compile() sorts the vocabulary.
  GrammarCompiler(const Tokenizer& tokenizer, int64_t vocab, int32_t end);
  ~GrammarCompiler();
  GrammarCompiler(const GrammarCompiler&) = delete;
  GrammarCompiler& operator=(const GrammarCompiler&) = delete;

  // kInvalidArgument: what is wrong with the text, or a grammar that nothing matches. kUnsupported: this build has no grammars.
  Result<Grammar> compile(const GrammarSource& source);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// One text's way through a grammar. Not thread-safe.
class GrammarMatcher {
 public:
  explicit GrammarMatcher(const Grammar& grammar);
  ~GrammarMatcher();
  GrammarMatcher(GrammarMatcher&&) noexcept;
  GrammarMatcher& operator=(GrammarMatcher&&) noexcept;

  // Bit id % 32 of word id / 32 says whether token `id` may come next; (vocab + 31) / 32 words. The end may where the text matches.
  // Special tokens never may. Where nothing leads on any more, and behind the end, the end alone may.
  void allowed(std::span<uint32_t> bits);
  // A token that may come next; of another one it says false, and from then on the end alone may come.
  bool accept(int32_t id);
  bool done() const;  // the end was accepted, or nothing leads on

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice
