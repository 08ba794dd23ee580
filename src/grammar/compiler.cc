#include <list>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/printable.h"
#include "grammar/compiled.h"
#include "grammar/ebnf.h"
#include "grammar/grammar.h"
#include "grammar/schema/compiler.h"

namespace sluice {
namespace {

constexpr int64_t kCompileSteps = 40'000'000;
constexpr size_t kKeptMax = 256, kKeptBytesMax = size_t{64} << 20, kMessageMax = 400;

Status wrong(const GrammarSource& source, const Status& status, const Work& work) {
  if (work.stopped()) return {Code::kUnsupported, "stopped"};
  constexpr const char* kNames[] = {"JSON schema", "regular expression", "EBNF grammar", "choice"};
  std::string line = printable(valid_utf8(status.message));
  if (line.size() > kMessageMax) line = valid_utf8(line.substr(0, kMessageMax)) + "...";
  if (source.kind == GrammarKind::kJsonSchema) return invalid(line);
  return invalid(std::string(kNames[static_cast<size_t>(source.kind)]) +
                 ": wanted one that can be compiled, found " + line);
}

Status check_size(const GrammarSource& source) {
  constexpr int64_t kMax[] = {kSchemaBytesMax, kPatternBytesMax, kEbnfBytesMax, kSchemaBytesMax};
  const int64_t most = kMax[static_cast<size_t>(source.kind)];
  int64_t bytes = std::ssize(source.text);
  for (const std::string& choice : source.choices) bytes += std::ssize(choice);
  if (bytes <= most) return {};
  return invalid("wanted at most " + std::to_string(most) + " bytes, found " + std::to_string(bytes));
}

Result<Program> compile_program(const GrammarSource& source, Work* work) {
  switch (source.kind) {
    case GrammarKind::kRegex:
      return compile_regex(source.text, work);
    case GrammarKind::kEbnf:
      return compile_ebnf(source.text, work);
    case GrammarKind::kChoice:
      return compile_texts(source.choices);
    case GrammarKind::kJsonSchema:
      break;
  }
  return compile_schema(source.text, source.object, work);
}

// Whether some text of the grammar passes all value checks. Also true if the search for such a text takes too long.
bool has_text(const CompiledGrammar& grammar, const std::stop_token& stop) {
  if (!grammar.program.checks) return true;
  Work work(kCompileSteps, stop);
  Parse parse(grammar);
  return parse.begin(&work) && parse.find_text(&work) != Parse::Found::kNone;
}

}  // namespace

GrammarSource any_json_object() {
  return {.kind = GrammarKind::kJsonSchema, .text = R"({"type":"object","additionalProperties":true})"};
}
GrammarSource one_of_strings(std::span<const std::string> strings) {
  return {.kind = GrammarKind::kChoice, .choices = {strings.begin(), strings.end()}};
}

struct GrammarCompiler::State {
  State(const Tokenizer& t, int64_t v, int32_t e) : tokenizer(t), vocab(v), end(e) {}
  const Tokenizer tokenizer;
  const int64_t vocab;
  const int32_t end;
  std::mutex mutex;
  // Guarded by the mutex.
  std::shared_ptr<const Vocabulary> vocabulary;
  std::shared_ptr<std::atomic<int64_t>> mask_bytes = std::make_shared<std::atomic<int64_t>>(0);
  std::unordered_map<const Leaf*, std::shared_ptr<LeafMasks>> common;
  struct Kept {
    GrammarSource source;
    std::shared_ptr<const Grammar::Compiled> compiled;
    size_t bytes;
  };
  std::list<Kept> kept;  // most recent first
  size_t kept_bytes = 0;

  std::shared_ptr<const Vocabulary> get_vocabulary() {
    const std::lock_guard lock(mutex);
    if (vocabulary == nullptr) vocabulary = std::make_shared<const Vocabulary>(tokenizer, vocab, end);
    return vocabulary;
  }
  std::shared_ptr<const Grammar::Compiled> find(const GrammarSource& source) {
    const std::lock_guard lock(mutex);
    for (auto it = kept.begin(); it != kept.end(); ++it)
      if (it->source == source) {
        kept.splice(kept.begin(), kept, it);
        return it->compiled;
      }
    return nullptr;
  }
  void keep(const GrammarSource& source, std::shared_ptr<const Grammar::Compiled> compiled) {
    size_t bytes = source.text.size() + compiled->grammar.program.bytes();
    for (const std::string& choice : source.choices) bytes += choice.size() + sizeof(choice);
    const std::lock_guard lock(mutex);
    if (bytes > kKeptBytesMax) return;
    kept.push_front({source, std::move(compiled), bytes});
    kept_bytes += bytes;
    while (kept.size() > kKeptMax || kept_bytes > kKeptBytesMax) {
      kept_bytes -= kept.back().bytes;
      kept.pop_back();
    }
  }
  // Returns masks shared by all grammars for the common leaves, and new masks for any other leaf.
  std::shared_ptr<LeafMasks> masks_of(const LeafPointer& leaf,
                                      const std::shared_ptr<const Vocabulary>& words) {
    const CommonLeaves& c = CommonLeaves::get();
    for (const LeafPointer* one :
         {&c.any_string, &c.any_scalar, &c.number, &c.integer, &c.boolean, &c.null, &c.blanks, &c.open_object,
          &c.close_object, &c.open_array, &c.close_array, &c.comma, &c.colon}) {
      if (*one != leaf) continue;
      const std::lock_guard lock(mutex);
      auto& masks = common[leaf.get()];
      if (masks == nullptr) masks = std::make_shared<LeafMasks>(leaf, words, mask_bytes);
      return masks;
    }
    return std::make_shared<LeafMasks>(leaf, words, mask_bytes);
  }
};

GrammarCompiler::GrammarCompiler(const Tokenizer& tokenizer, int64_t vocab, int32_t end)
    : state_(std::make_unique<State>(tokenizer, vocab, end)) {}
GrammarCompiler::~GrammarCompiler() = default;

Result<Grammar> GrammarCompiler::compile(const GrammarSource& source, std::stop_token stop) {
  SLUICE_TRY(check_size(source));
  if (auto known = state_->find(source)) return Grammar(std::move(known));
  Work work(kCompileSteps, std::move(stop));
  auto program = compile_program(source, &work);
  if (!program.ok()) return wrong(source, program.status(), work);
  const auto vocabulary = state_->get_vocabulary();
  auto compiled = std::make_shared<Grammar::Compiled>();
  compiled->grammar.program = std::move(program).value();
  compiled->grammar.vocabulary = vocabulary;
  for (const LeafPointer& leaf : compiled->grammar.program.leaves)
    compiled->grammar.masks.push_back(state_->masks_of(leaf, vocabulary));
  Grammar out(compiled);
  // Computes the first mask now, so that a grammar without a first token or with too expensive masks is rejected at once.
  GrammarMatcher first(out);
  TokenBits bits(static_cast<size_t>(vocabulary->words));
  const Status begins = first.allowed(bits, stop);
  const bool refused =
      compiled->grammar.program.refuses && begins.code == Code::kUnsupported;  // no token may be first
  if (refused || (begins.ok() && !has_text(compiled->grammar, stop)))
    return invalid(
        "JSON schema: wanted a schema that allows some value, found a schema whose values all fail \"not\", "
        "\"oneOf\", \"if\" or \"uniqueItems\"");
  if (!begins.ok()) return wrong(source, begins, work);
  state_->keep(source, compiled);
  return out;
}

}  // namespace sluice
