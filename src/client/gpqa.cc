// The form of questions and the pattern of answers follow openai/simple-evals (gpqa_eval.py and common.py). The flexible match follows
// the gpqa tasks of lm-evaluation-harness.
#include <algorithm>
#include <array>

#include "base/random.h"
#include "client/question_set.h"
#include "client/table_file.h"

namespace sluice {
namespace {

constexpr std::string_view kColumns[] = {"Question", "Correct Answer", "Incorrect Answer 1",
                                         "Incorrect Answer 2", "Incorrect Answer 3"};
constexpr std::string_view kTask =
    "Answer the following multiple choice question. The last line of your response should be of the "
    "following "
    "format: 'Answer: $LETTER' (without quotes) where LETTER is one of ABCD. Think step by step before "
    "answering.";
constexpr int kOptions = 4;

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_option(char c) { return c >= 'A' && c < 'A' + kOptions; }
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

std::string stripped(const std::string& text) {
  const char* space = " \t\r\n";
  const size_t begin = text.find_first_not_of(space);
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(space) - begin + 1);
}

class Gpqa final : public QuestionSet {
 public:
  Gpqa(std::vector<TableRow> rows, uint64_t seed) : rows_(std::move(rows)), seed_(seed) {}
  std::vector<EvalPrompt> prompts(int64_t repeat) const override {
    std::vector<EvalPrompt> out;
    for (int64_t i = 0; i < std::ssize(rows_); ++i) out.push_back(prompt(i, repeat));
    return out;
  }
  Grade grade(const EvalPrompt& prompt, const std::string& answer) const override {
    Grade out{.strict = strict_choice(answer) == prompt.wanted, .found = flexible_choice(answer)};
    out.flexible = out.found == prompt.wanted;
    return out;
  }

 private:
  EvalPrompt prompt(int64_t question, int64_t repeat) const {
    std::array<int, kOptions> order = {0, 1, 2, 3};  // option 0 is correct
    for (int i = kOptions - 1; i > 0; --i) {
      const uint64_t draw =
          (static_cast<uint64_t>(question) << 32 | static_cast<uint64_t>(repeat)) * kOptions +
          static_cast<uint64_t>(i);
      std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(uniform(seed_, draw) * (i + 1))]);
    }
    const auto& cells = rows_[static_cast<size_t>(question)].cells;
    EvalPrompt out{question, "gpqa", std::string(kTask) + "\n\n" + stripped(cells.at("Question")) + "\n\n",
                   ""};
    for (int i = 0; i < kOptions; ++i) {
      const int option = order[static_cast<size_t>(i)];
      const std::string letter(1, static_cast<char>('A' + i));
      if (option == 0) out.wanted = letter;
      out.text += letter + ") " + stripped(cells.at(std::string(kColumns[option + 1]))) +
                  (i + 1 < kOptions ? "\n" : "");
    }
    return out;
  }
  std::vector<TableRow> rows_;
  uint64_t seed_;
};

}  // namespace

// The last match of (?i)Answer[ \t]*:[ \t]*\$?([A-D])\$?, except that parentheses and Markdown's asterisks may stand around the letter, as in
// "**Answer: (B)**", and that no other letter may follow it.
std::string strict_choice(const std::string& answer) {
  constexpr std::string_view kWord = "answer";
  std::string out = kNoAnswer;
  std::string small = answer;
  std::transform(small.begin(), small.end(), small.begin(), lower);
  for (size_t at = small.find(kWord); at != std::string::npos; at = small.find(kWord, at + 1)) {
    const size_t colon = small.find_first_not_of(" \t*", at + kWord.size());
    if (colon == std::string::npos || small[colon] != ':') continue;
    const size_t letter = small.find_first_not_of(" \t*$(", colon + 1);
    if (letter == std::string::npos) continue;
    const char upper = small[letter] >= 'a' ? static_cast<char>(small[letter] - 32) : small[letter];
    const bool alone = letter + 1 == small.size() || !is_letter(small[letter + 1]);
    if (is_option(upper) && alone) out = upper;
  }
  return out;
}

std::string flexible_choice(const std::string& answer) {
  const std::string strict = strict_choice(answer);
  if (strict != kNoAnswer) return strict;
  for (size_t at = answer.rfind('('); at != std::string::npos;
       at = at == 0 ? std::string::npos : answer.rfind('(', at - 1))
    if (at + 2 < answer.size() && is_option(answer[at + 1]) && answer[at + 2] == ')') return {answer[at + 1]};
  return kNoAnswer;
}

Result<std::unique_ptr<QuestionSet>> open_gpqa(const QuestionFile& file) {
  auto rows = read_table(file.path, kColumns);
  if (!rows.ok()) return rows.status();
  if (file.limit > 0 && std::ssize(rows.value()) > file.limit)
    rows.value().resize(static_cast<size_t>(file.limit));
  return std::unique_ptr<QuestionSet>(new Gpqa(std::move(rows).value(), file.seed));
}

}  // namespace sluice
