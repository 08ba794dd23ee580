// The prompt, the stop strings, the two filters and the characters that an exact match ignores follow EleutherAI/lm-evaluation-harness,
// lm_eval/tasks/gsm8k/gsm8k.yaml (version 3).
#include <algorithm>

#include "client/question_set.h"
#include "client/table_file.h"

namespace sluice {
namespace {

constexpr std::string_view kDigits = "0123456789";
constexpr std::string_view kMark = "#### ";

std::string question_text(const std::string& question) { return "Question: " + question + "\nAnswer:"; }

// The number of successive characters from position `at` that belong to `set`.
size_t run_of(std::string_view text, size_t at, std::string_view set) {
  return std::min(text.find_first_not_of(set, at), text.size()) - at;
}

// Removes what a match ignores: commas, dollar signs, everything up to and including the last "#### ", and a final full stop.
std::string plain(std::string text) {
  std::erase_if(text, [](char c) { return c == ',' || c == '$'; });
  const size_t mark = text.rfind(kMark);
  if (mark != std::string::npos) text.erase(0, mark + kMark.size());
  if (text.ends_with('.')) text.pop_back();
  return text;
}

class Gsm8k final : public QuestionSet {
 public:
  Gsm8k(std::string shots, std::vector<EvalPrompt> questions)
      : shots_(std::move(shots)), questions_(std::move(questions)) {}
  std::vector<EvalPrompt> prompts(int64_t) const override {
    std::vector<EvalPrompt> out = questions_;
    for (EvalPrompt& p : out) p.text = shots_ + question_text(p.text);
    return out;
  }
  Grade grade(const EvalPrompt& prompt, const std::string& answer) const override {
    const std::string strict = strict_number(answer), flexible = flexible_number(answer);
    Grade out{.strict = same_number(prompt.wanted, strict), .found = flexible};
    out.flexible = same_number(prompt.wanted, flexible);
    return out;
  }
  std::vector<std::string> stops() const override { return {"Question:", "</s>", "<|im_end|>"}; }

 private:
  std::string shots_;
  std::vector<EvalPrompt> questions_;
};

}  // namespace

// The first match of #### (\-?[0-9\.\,]+).
std::string strict_number(const std::string& answer) {
  constexpr std::string_view kNumber = "0123456789.,";
  for (size_t at = answer.find(kMark); at != std::string::npos; at = answer.find(kMark, at + 1)) {
    const size_t begin = at + kMark.size();
    const size_t sign = begin < answer.size() && answer[begin] == '-';
    const size_t length = run_of(answer, begin + sign, kNumber);
    if (length > 0) return answer.substr(begin, sign + length);
  }
  return kNoAnswer;
}

// The last match of (-?[$0-9.,]{2,})|(-?[0-9]+).
std::string flexible_number(const std::string& answer) {
  constexpr std::string_view kNumber = "$0123456789.,";
  std::string out = kNoAnswer;
  for (size_t at = 0; at < answer.size();) {
    const size_t sign = answer[at] == '-';
    size_t length = run_of(answer, at + sign, kNumber);
    if (length < 2) length = run_of(answer, at + sign, kDigits);
    if (length > 0) out = answer.substr(at, sign + length);
    at += length > 0 ? sign + length : 1;
  }
  return out;
}

bool same_number(const std::string& wanted, const std::string& found) {
  return plain(wanted) == plain(found);
}

Result<std::unique_ptr<QuestionSet>> open_gsm8k(const QuestionFile& file) {
  constexpr std::string_view kColumns[] = {"question", "answer"};
  auto rows = read_table(file.path, kColumns);
  if (!rows.ok()) return rows.status();
  auto shots = file.shots_path.empty() ? rows : read_table(file.shots_path, kColumns);
  if (!shots.ok()) return shots.status();
  const std::string& shots_path = file.shots_path.empty() ? file.path : file.shots_path;
  // The number of questions in `path` that are worked examples and therefore are not asked.
  const int64_t own = file.shots_path.empty() ? file.shots : 0;
  if (std::ssize(shots.value()) < file.shots || std::ssize(rows.value()) <= own)
    return Status{Code::kCorrupt, shots_path + ": wanted " + std::to_string(file.shots) +
                                      " worked examples and further questions, found " +
                                      std::to_string(shots.value().size()) + " rows"};
  std::string text;
  for (int64_t i = 0; i < file.shots; ++i) {
    const auto& cells = shots.value()[static_cast<size_t>(i)].cells;
    text += question_text(cells.at("question")) + " " + cells.at("answer") + "\n\n";
  }
  std::vector<EvalPrompt> questions;
  for (int64_t i = own; i < std::ssize(rows.value()); ++i) {
    if (file.limit > 0 && i - own >= file.limit) break;
    const TableRow& row = rows.value()[static_cast<size_t>(i)];
    const std::string& answer = row.cells.at("answer");
    if (strict_number(answer) == kNoAnswer)
      return Status{Code::kCorrupt,
                    row.where + ": wanted an answer with '#### ' and a number, found '" + answer + "'"};
    questions.push_back({i, "gsm8k", row.cells.at("question"), answer});
  }
  return std::unique_ptr<QuestionSet>(new Gsm8k(std::move(text), std::move(questions)));
}

}  // namespace sluice
