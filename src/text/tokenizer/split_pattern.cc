#include "text/tokenizer/split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

#include "base/utf8.h"
#include "text/tokenizer/pattern_syntax.h"
#include "text/tokenizer/unicode_stand_in.h"

namespace sluice {
namespace {

constexpr size_t kPatternBytesMax = 16384;  // the longest known pattern has about 500 bytes
constexpr size_t kJitStackBytes = 1 << 20;
// Heap limit of PCRE2's interpreter, which matches if the JIT's stack is too small.
constexpr uint32_t kHeapKibMax = 1 << 16;
// Limits on PCRE2's match steps. On their worst texts, which are long runs of one kind of character, known patterns take at most four per byte.
constexpr uint64_t kStepsFirst = 32;  // enough for almost every match
constexpr uint64_t kMatchFloor = 1 << 16, kMatchPerByte = 16;
constexpr uint64_t kBudgetFloor = 1 << 20, kBudgetPerByte = 64;

template <auto free>
struct FreeWith {
  template <class T>
  void operator()(T* pointer) const {
    free(pointer);
  }
};
using Regex = std::unique_ptr<pcre2_code, FreeWith<pcre2_code_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, FreeWith<pcre2_match_data_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, FreeWith<pcre2_match_context_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, FreeWith<pcre2_compile_context_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, FreeWith<pcre2_jit_stack_free>>;

std::string pcre2_text(int code) {
  PCRE2_UCHAR buffer[256] = {};
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

// The state of one cut(): the remaining steps, and PCRE2's scratch memory, which threads cannot share.
class Matcher {
 public:
  static Result<Matcher> make(const pcre2_code* code, const std::string& where, int64_t text_bytes) {
    Matcher m;
    m.code_ = code;
    m.where_ = &where;
    m.budget_ = kBudgetFloor + kBudgetPerByte * static_cast<uint64_t>(text_bytes);
    m.data_.reset(pcre2_match_data_create(1, nullptr));
    m.context_.reset(pcre2_match_context_create(nullptr));
    if (!m.data_ || !m.context_) return out_of_memory(where + ": no memory to match the pattern");
    pcre2_set_heap_limit(m.context_.get(), kHeapKibMax);
    pcre2_set_match_limit(m.context_.get(), kStepsFirst);
    // By default the JIT has only 32 KiB, on the thread's stack.
    m.stack_.reset(pcre2_jit_stack_create(32 << 10, kJitStackBytes, nullptr));
    if (m.stack_) pcre2_jit_stack_assign(m.context_.get(), nullptr, m.stack_.get());
    return m;
  }

  // The first match at or after `from`; `end` is -1 if there is none.
  struct Match {
    int64_t begin = 0, end = -1;
  };
  Result<Match> find(std::string_view text, int64_t from) {
    const uint64_t step_limit = std::min<uint64_t>(kMatchFloor + kMatchPerByte * text.size(), UINT32_MAX);
    uint32_t options =
        // cut() has validated the text; validating at each match would take quadratic time
        PCRE2_NO_UTF_CHECK;
    uint64_t steps = kStepsFirst;
    for (;;) {
      const int rc = pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                 static_cast<PCRE2_SIZE>(from), options, data_.get(), context_.get());
      budget_ -= std::min(budget_, steps);
      if (steps != kStepsFirst && rc != PCRE2_ERROR_MATCHLIMIT)
        pcre2_set_match_limit(context_.get(), kStepsFirst);
      if (rc >= 0) {
        const PCRE2_SIZE* o = pcre2_get_ovector_pointer(data_.get());
        return Match{static_cast<int64_t>(o[0]), static_cast<int64_t>(o[1])};
      }
      if (rc == PCRE2_ERROR_NOMATCH) return Match{};
      if (rc == PCRE2_ERROR_JIT_STACKLIMIT && options == PCRE2_NO_UTF_CHECK) {
        options |= PCRE2_NO_JIT;
      } else if (rc == PCRE2_ERROR_MATCHLIMIT && budget_ > 0 && steps < step_limit) {
        steps = std::min(steps * 2, step_limit);
        pcre2_set_match_limit(context_.get(), static_cast<uint32_t>(steps));
      } else if (rc == PCRE2_ERROR_NOMEMORY) {
        return out_of_memory(*where_ + ": no memory to match the pattern");
      } else {
        return unsupported(*where_ + ": wanted a pattern that matches in few steps, found " + pcre2_text(rc) +
                           " at byte " + std::to_string(from) + " of the text");
      }
    }
  }

 private:
  const pcre2_code* code_ = nullptr;
  const std::string* where_ = nullptr;
  uint64_t budget_ = 0;
  MatchData data_;
  MatchContext context_;
  JitStack stack_;
};

// Splits valid UTF-8. As in Hugging Face tokenizers with Oniguruma, an empty match also splits the text, except directly after another match.
Status cut_valid(std::string_view text, int64_t base, Matcher* matcher, std::vector<int64_t>* ends) {
  const int64_t size = static_cast<int64_t>(text.size());
  int64_t from = 0, cut = 0, last_end = -1;
  const auto cut_at = [&](int64_t place) {
    if (place == cut) return;
    ends->push_back(base + place);
    cut = place;
  };
  while (from <= size) {
    const auto found = matcher->find(text, from);
    if (!found.ok()) return found.status();
    const auto [begin, end] = found.value();
    if (end < 0) break;
    if (begin == end && end == last_end) {
      from += from < size ? utf8_step(text.substr(static_cast<size_t>(from))).bytes : 1;
      continue;
    }
    cut_at(begin);
    cut_at(end);
    from = last_end = end;
  }
  cut_at(size);
  return {};
}

// The longest prefix of `text` that is entirely valid or entirely invalid UTF-8. `copy` is the prefix with code points replaced by their
// stand-ins, which have the same lengths; empty if nothing is replaced.
struct Run {
  int64_t bytes = 0;
  bool valid = false;
};
Run next_run(std::string_view text, std::string* copy) {
  Run run{.valid = utf8_step(text).valid};
  copy->clear();
  while (run.bytes < static_cast<int64_t>(text.size())) {
    const Utf8Step step = utf8_step(text.substr(static_cast<size_t>(run.bytes)));
    if (step.valid != run.valid) break;
    const char32_t stand_in = unicode_stand_in(step.code_point);
    if (stand_in != step.code_point && copy->empty()) *copy = text.substr(0, static_cast<size_t>(run.bytes));
    if (stand_in != step.code_point || !copy->empty()) append_utf8(stand_in, copy);
    run.bytes += step.bytes;
  }
  return run;
}

// Splits one piece, which may contain invalid UTF-8.
Status cut_piece(std::string_view text, int64_t base, Matcher* matcher, std::vector<int64_t>* ends) {
  std::string copy;
  while (!text.empty()) {
    const Run run = next_run(text, &copy);
    const std::string_view part = text.substr(0, static_cast<size_t>(run.bytes));
    if (run.valid)
      SLUICE_TRY(cut_valid(copy.empty() ? part : copy, base, matcher, ends));
    else
      ends->push_back(base + run.bytes);
    text.remove_prefix(part.size());
    base += run.bytes;
  }
  return {};
}

}  // namespace

const std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct SplitPattern::Compiled {
  Regex regex;
  std::string where;
};

Result<SplitPattern> SplitPattern::compile(std::string_view pattern, const std::string& where) {
  if (pattern.size() > kPatternBytesMax)
    return unsupported(where + ": wanted a pattern of at most " + std::to_string(kPatternBytesMax) +
                       " bytes, found " + std::to_string(pattern.size()));
  if (const std::string found = pattern_difference(pattern); !found.empty())
    return unsupported(where + ": wanted a pattern that PCRE2 and Oniguruma read alike, found " + found);
  const CompileContext context(pcre2_compile_context_create(nullptr));
  if (!context) return out_of_memory(where + ": no memory to compile the pattern");
  pcre2_set_newline(context.get(),
                    PCRE2_NEWLINE_LF);  // '.' excludes the same characters as in Oniguruma
  int error = 0;
  PCRE2_SIZE place = 0;
  Regex regex(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                            PCRE2_UTF | PCRE2_UCP | PCRE2_NO_AUTO_CAPTURE, &error, &place, context.get()));
  if (!regex)
    return Status{Code::kCorrupt, where + ": wanted a regular expression, found " + pcre2_text(error) +
                                      " at byte " + std::to_string(place)};
  // Fails on systems that forbid programs to generate code. Then PCRE2's interpreter matches, with the same results.
  pcre2_jit_compile(regex.get(), PCRE2_JIT_COMPLETE);
  return SplitPattern(std::make_shared<Compiled>(Compiled{std::move(regex), where}));
}

Status SplitPattern::cut(std::string_view text, std::vector<int64_t>* ends) const {
  auto matcher = Matcher::make(compiled_->regex.get(), compiled_->where, static_cast<int64_t>(text.size()));
  if (!matcher.ok()) return matcher.status();
  std::vector<int64_t> finer;
  int64_t begin = 0;
  for (const int64_t end : *ends) {
    const std::string_view piece = text.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    SLUICE_TRY(cut_piece(piece, begin, &matcher.value(), &finer));
    begin = end;
  }
  *ends = std::move(finer);
  return {};
}

}  // namespace sluice
