// Which tokens may come next where a text must match a JSON schema, a regular expression or a grammar.
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
  kJsonSchema,  // members in the order of the schema, others only where it asks for them
  kRegex,  // that the whole text matches; ECMAScript's syntax, without back references, look-behinds and word boundaries
  kEbnf,    // GBNF, as llama.cpp has it; the rule "root" is the whole text
  kChoice,  // one of `choices`
};

struct GrammarSource {
  GrammarKind kind = GrammarKind::kJsonSchema;
  std::string text = {};
  std::vector<std::string> choices = {};  // of kChoice: not empty, and none of them is
  bool object = false;                    // of kJsonSchema: values are objects, whatever the schema says
  bool operator==(const GrammarSource&) const = default;
};
GrammarSource any_json_object();
GrammarSource one_of_strings(std::span<const std::string> strings);

// Bytes of a text that is compiled; choices together have as many as a schema.
constexpr int64_t kSchemaBytesMax = 512 << 10, kPatternBytesMax = 16 << 10, kEbnfBytesMax = 64 << 10;

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

// Compiles against the bytes of a tokenizer's tokens. Any number of threads may use it. It keeps what was compiled lately and finds it
// by its text.
class GrammarCompiler {
 public:
  // `vocab` logits a row, at least as many as the tokenizer has ids; `end` is the token that ends a text. Takes no time: the first
  // compile() sorts the vocabulary.
  GrammarCompiler(const Tokenizer& tokenizer, int64_t vocab, int32_t end);
  ~GrammarCompiler();
  GrammarCompiler(const GrammarCompiler&) = delete;
  GrammarCompiler& operator=(const GrammarCompiler&) = delete;

  // Takes a bounded number of steps, about a second at most, and ends soon after `stop`. kInvalidArgument: what is wrong with the
  // text, what of it cannot be kept, that nothing matches it, or that it takes too long.
  Result<Grammar> compile(const GrammarSource& source, std::stop_token stop = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// One text's way through a grammar. Not thread-safe.
class GrammarMatcher {
 public:
  explicit GrammarMatcher(const Grammar& grammar);
  ~GrammarMatcher();
  GrammarMatcher(const GrammarMatcher& other);  // goes on from where the other is
  GrammarMatcher(GrammarMatcher&&) noexcept;
  GrammarMatcher& operator=(GrammarMatcher&&) noexcept;

  // Bit id % 32 of word id / 32 says whether token `id` may come next; (vocab + 31) / 32 words. The end may where the text matches.
  // Other special tokens never may. kInvalidArgument: no token may come, or finding out takes more steps than are allowed; so does
  // every call after that. Takes at most some tens of milliseconds, and ends soon after `stop`.
  Status allowed(std::span<uint32_t> bits, std::stop_token stop = {});
  // kInvalidArgument: a token that may not come here. Then and behind the end no other may.
  Status accept(int32_t id, std::stop_token stop = {});
  bool done() const;  // the end was accepted

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sluice
