#include "client/question_set.h"

#include <map>

#include "client/table_file.h"

namespace sluice {
namespace {

std::string trimmed(const std::string& text) {
  const char* space = " \t\r\n";
  const size_t begin = text.find_first_not_of(space);
  if (begin == std::string::npos) return "";
  std::string out = text.substr(begin, text.find_last_not_of(space) - begin + 1);
  if (out.size() > 1 && out.back() == '.') out.pop_back();
  return out;
}

class Questions final : public QuestionSet {
 public:
  explicit Questions(std::vector<EvalPrompt> prompts) : prompts_(std::move(prompts)) {}
  std::vector<EvalPrompt> prompts(int64_t) const override { return prompts_; }
  Grade grade(const EvalPrompt& prompt, const std::string& answer) const override {
    const bool right = same_answer(prompt.wanted, answer);
    return {.strict = right, .flexible = right, .found = trimmed(answer)};
  }

 private:
  std::vector<EvalPrompt> prompts_;
};

}  // namespace

bool same_answer(const std::string& wanted, const std::string& found) {
  return trimmed(wanted) == trimmed(found);
}

Result<std::vector<EvalQuestion>> read_questions(const std::string& path, int64_t limit) {
  constexpr std::string_view kColumns[] = {"task", "question", "answer"};
  const auto rows = read_table(path, kColumns);
  if (!rows.ok()) return rows.status();
  std::vector<EvalQuestion> out;
  std::map<std::string, int64_t> count;
  for (const TableRow& row : rows.value()) {
    const std::string& task = row.cells.at("task");
    if (limit > 0 && ++count[task] > limit) continue;
    out.push_back({task, row.cells.at("question"), row.cells.at("answer")});
  }
  return out;
}

Result<std::unique_ptr<QuestionSet>> open_questions(const QuestionFile& file) {
  const auto questions = read_questions(file.path, file.limit);
  if (!questions.ok()) return questions.status();
  std::vector<EvalPrompt> prompts;
  for (const EvalQuestion& q : questions.value())
    prompts.push_back({std::ssize(prompts), q.task, q.question, q.answer});
  return std::unique_ptr<QuestionSet>(new Questions(std::move(prompts)));
}

}  // namespace sluice
