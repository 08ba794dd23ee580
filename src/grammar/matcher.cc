#include <algorithm>
#include <optional>
#include <utility>

#include "grammar/compiled.h"
#include "grammar/grammar.h"

namespace sluice {
namespace {

// Work budgets per token. A step takes ten to fifty nanoseconds.
constexpr int64_t kMaskSteps = 1'500'000, kAcceptSteps = 500'000;

Status too_long() {
  return invalid("structured output: wanted a grammar whose token masks take at most " +
                 std::to_string(kMaskSteps) + " steps, found one that takes more");
}
// The request is right, and its answer with another seed may not come here.
Status no_token() {
  return {Code::kUnsupported, "structured output: wanted a token that the grammar allows here, found none"};
}

}  // namespace

struct GrammarMatcher::State {
  explicit State(std::shared_ptr<const Grammar::Compiled> c)
      : compiled(std::move(c)), parse(compiled->grammar) {
    Work work(kAcceptSteps);
    if (!parse.begin(&work)) failed = too_long();
  }
  std::shared_ptr<const Grammar::Compiled> compiled;
  Parse parse;
  std::optional<Status> failed = {};
  bool done = false;

  Status fail(Status status) {
    failed = status;
    return status;
  }
};

GrammarMatcher::GrammarMatcher(const Grammar& grammar) : state_(std::make_unique<State>(grammar.compiled_)) {}
GrammarMatcher::GrammarMatcher(const GrammarMatcher& other)
    : state_(std::make_unique<State>(*other.state_)) {}
GrammarMatcher::~GrammarMatcher() = default;
GrammarMatcher::GrammarMatcher(GrammarMatcher&&) noexcept = default;
GrammarMatcher& GrammarMatcher::operator=(GrammarMatcher&&) noexcept = default;
bool GrammarMatcher::done() const { return state_->done; }

Status GrammarMatcher::allowed(std::span<uint32_t> bits, std::stop_token stop) {
  State& s = *state_;
  std::fill(bits.begin(), bits.end(), 0u);
  if (s.failed) return *s.failed;
  if (s.done || s.parse.dead()) return s.fail(no_token());
  Work work(kMaskSteps, std::move(stop));
  if (!s.parse.allowed(bits, &work)) return s.fail(too_long());
  const int32_t end = s.compiled->grammar.vocabulary->end;
  if (s.parse.complete()) bits[static_cast<size_t>(end) / 32] |= 1u << (end % 32);
  if (std::all_of(bits.begin(), bits.end(), [](uint32_t word) { return word == 0; }))
    return s.fail(no_token());
  return {};
}

Status GrammarMatcher::accept(int32_t id, std::stop_token stop) {
  State& s = *state_;
  if (s.failed) return *s.failed;
  const Vocabulary& words = *s.compiled->grammar.vocabulary;
  if (s.done || (id == words.end && !s.parse.complete())) return s.fail(no_token());
  if (id == words.end) {
    s.done = true;
    return {};
  }
  const bool text = id >= 0 && id < words.tokenizer.vocab_size() && !words.tokenizer.is_special(id) &&
                    !words.tokenizer.piece(id).empty();
  if (!text) return s.fail(no_token());
  Work work(kAcceptSteps, std::move(stop));
  if (!s.parse.accept(words.tokenizer.piece(id), &work)) return s.fail(too_long());
  return s.parse.dead() ? s.fail(no_token()) : Status{};
}

}  // namespace sluice
