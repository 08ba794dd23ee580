// Grammars by xgrammar, which throws: no exception leaves this file.
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/printable.h"
#include "grammar/grammar.h"
#include "grammar/schema_limits.h"

namespace xgrammar {
std::string& first_warning();  // of this thread since it was cleared: cmake/xgrammar_log.cc
}

namespace sluice {
namespace {

constexpr int64_t kCacheBytes = int64_t{256} << 20;
constexpr int kBlanksMax = 40;  // between two parts of a JSON text: a model must not write blanks for ever
constexpr size_t kMessageMax = 300;  // of an error: xgrammar quotes the text that it got

// That of any JSON. A schema's grammar leaves control characters in strings whose length is bounded, and quotes in patterns, so its
// texts match this one, too.
constexpr const char* kAnyJson = "true";

// Of one compilation: the rest of the machine goes on serving.
int threads() { return static_cast<int>(std::clamp(std::thread::hardware_concurrency() / 2, 1u, 8u)); }

Status wrong(const GrammarSource& source, const std::string& why) {
  constexpr const char* kNames[] = {"JSON schema", "regular expression", "EBNF grammar"};
  std::string line = why.substr(0, why.find('\n'));
  if (line.size() > kMessageMax) line = line.substr(0, kMessageMax) + "...";
  return invalid(std::string(kNames[static_cast<size_t>(source.kind)]) +
                 ": wanted one that can be compiled, found " +
                 (line.empty() ? "one that cannot" : printable(valid_utf8(line))));
}

Status check_source(const GrammarSource& source) {
  constexpr int64_t kMost[] = {kSchemaBytesMax, kPatternBytesMax, kEbnfBytesMax};
  const int64_t most = kMost[static_cast<size_t>(source.kind)], bytes = std::ssize(source.text);
  if (bytes > most) return wrong(source, std::to_string(bytes) + " bytes, more than " + std::to_string(most));
  if (source.kind != GrammarKind::kJsonSchema) return {};
  const auto json = parse_json(source.text, "JSON schema");  // which bounds its depth, too
  if (!json.ok()) return invalid(json.status().message);
  return check_schema(json.value(), kPatternBytesMax);
}

xgrammar::Grammar read(const GrammarSource& source) {
  switch (source.kind) {
    case GrammarKind::kRegex:
      return xgrammar::Grammar::FromRegex(source.text);
    case GrammarKind::kEbnf:
      return xgrammar::Grammar::FromEBNF(source.text);
    case GrammarKind::kJsonSchema:
      break;
  }
  return xgrammar::Grammar::FromJSONSchema(source.text, true, std::nullopt, std::nullopt, true, kBlanksMax);
}

}  // namespace

struct Grammar::Compiled {
  std::vector<xgrammar::CompiledGrammar> grammars;  // a text matches all of them
  int32_t end;
  int64_t vocab;
  int64_t words() const { return (vocab + 31) / 32; }
};

struct GrammarCompiler::State {
  State(const Tokenizer& t, int64_t v, int32_t e) : tokenizer(t), vocab(v), end(e) {}
  const Tokenizer tokenizer;
  const int64_t vocab;
  const int32_t end;
  std::mutex mutex;
  std::optional<xgrammar::GrammarCompiler> compiler;  // guarded by the mutex until it is there

  xgrammar::GrammarCompiler& get() {
    const std::lock_guard lock(mutex);
    if (compiler) return *compiler;
    std::vector<std::string> pieces(static_cast<size_t>(tokenizer.vocab_size()));
    // An empty piece is special to xgrammar, so that it never comes.
    for (size_t id = 0; id < pieces.size(); ++id)
      if (!tokenizer.is_special(static_cast<int32_t>(id)))
        pieces[id] = tokenizer.piece(static_cast<int32_t>(id));
    const xgrammar::TokenizerInfo info(pieces, xgrammar::VocabType::RAW, static_cast<int>(vocab),
                                       std::vector<int32_t>{end});
    return compiler.emplace(info, threads(), true, kCacheBytes);
  }
};

GrammarCompiler::GrammarCompiler(const Tokenizer& tokenizer, int64_t vocab, int32_t end)
    : state_(std::make_unique<State>(tokenizer, vocab, end)) {}
GrammarCompiler::~GrammarCompiler() = default;

Result<Grammar> GrammarCompiler::compile(const GrammarSource& source) {
  SLUICE_TRY(check_source(source));
  try {
    // It warns of what it leaves out of a grammar: an answer could then break the schema.
    xgrammar::first_warning().clear();
    const xgrammar::Grammar grammar = read(source);
    if (!xgrammar::first_warning().empty()) return wrong(source, xgrammar::first_warning());
    std::vector<xgrammar::CompiledGrammar> grammars{state_->get().CompileGrammar(grammar)};
    if (source.kind == GrammarKind::kJsonSchema)
      grammars.push_back(state_->get().CompileJSONSchema(kAnyJson));
    const Grammar out(std::make_shared<Grammar::Compiled>(
        Grammar::Compiled{std::move(grammars), state_->end, state_->vocab}));
    GrammarMatcher first(out);
    std::vector<uint32_t> bits(static_cast<size_t>(out.compiled_->words()));
    first.allowed(bits);
    if (first.done()) return wrong(source, "one that nothing matches");
    return out;
  } catch (const std::exception& e) {
    return wrong(source, e.what());
  }
}

struct GrammarMatcher::State {
  explicit State(std::shared_ptr<const Grammar::Compiled> c) : compiled(std::move(c)) {
    for (const xgrammar::CompiledGrammar& grammar : compiled->grammars) matchers.emplace_back(grammar);
  }
  std::shared_ptr<const Grammar::Compiled> compiled;
  std::vector<xgrammar::GrammarMatcher> matchers;
  std::vector<uint32_t> others;  // the bits of one of them
  bool done = false;

  // Leaves those of `bits` that all matchers leave.
  void intersect(std::span<uint32_t> bits) {
    std::fill(bits.begin(), bits.end(), ~0u);
    if (const int64_t used = compiled->vocab % 32; used != 0) bits.back() = (1u << used) - 1;
    others.resize(bits.size());
    int64_t words = compiled->words();
    DLTensor tensor{.data = others.data(),
                    .device = {kDLCPU, 0},
                    .ndim = 1,
                    .dtype = {kDLInt, 32, 1},
                    .shape = &words,
                    .strides = nullptr,
                    .byte_offset = 0};
    for (xgrammar::GrammarMatcher& matcher : matchers) {
      (void)matcher.FillNextTokenBitmask(&tensor);  // false: every token may come
      for (size_t i = 0; i < bits.size(); ++i) bits[i] &= others[i];
    }
  }
  bool accept(int32_t id) {
    const bool ends = id == compiled->end;  // which xgrammar takes anywhere
    return std::all_of(matchers.begin(), matchers.end(), [&](xgrammar::GrammarMatcher& matcher) {
      return (!ends || matcher.IsCompleted()) && matcher.AcceptToken(id);
    });
  }
};

GrammarMatcher::GrammarMatcher(const Grammar& grammar) : state_(std::make_unique<State>(grammar.compiled_)) {}
GrammarMatcher::~GrammarMatcher() = default;
GrammarMatcher::GrammarMatcher(GrammarMatcher&&) noexcept = default;
GrammarMatcher& GrammarMatcher::operator=(GrammarMatcher&&) noexcept = default;
bool GrammarMatcher::done() const { return state_->done; }

void GrammarMatcher::allowed(std::span<uint32_t> bits) {
  State& s = *state_;
  std::fill(bits.begin(), bits.end(), 0u);
  if (!s.done) {
    try {
      s.intersect(bits);
    } catch (const std::exception&) {
      std::fill(bits.begin(), bits.end(), 0u);
    }
    s.done = std::all_of(bits.begin(), bits.end(), [](uint32_t word) { return word == 0; });
  }
  if (s.done) bits[static_cast<size_t>(s.compiled->end) / 32] |= 1u << (s.compiled->end % 32);
}

bool GrammarMatcher::accept(int32_t id) {
  State& s = *state_;
  if (s.done) return id == s.compiled->end;
  bool taken = false;
  try {
    taken = s.accept(id);
  } catch (const std::exception&) {
  }
  s.done = !taken || id == s.compiled->end;
  return taken;
}

}  // namespace sluice
