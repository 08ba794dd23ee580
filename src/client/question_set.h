// Questions with answers that a program can judge: what is asked, and what is right.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"

namespace sluice {

struct EvalPrompt {
  int64_t question = 0;  // its place in the file
  std::string task;      // accuracy is told for each
  std::string text, wanted;
};

struct Grade {
  bool strict = false, flexible = false;  // whether it is right, by two ways to read it
  std::string found;                      // the answer as it was read, for whom the grade surprises
};

class QuestionSet {
 public:
  virtual ~QuestionSet() = default;
  // The same for the same repeat, in any process.
  virtual std::vector<EvalPrompt> prompts(int64_t repeat) const = 0;
  virtual Grade grade(const EvalPrompt& prompt, const std::string& answer) const = 0;
  virtual std::vector<std::string> stops() const { return {}; }
};

struct QuestionFile {
  std::string path;
  std::string shots_path =
      {};             // of gsm8k: the file that the worked examples come from; empty: the front of `path`
  int64_t shots = 5;  // how many
  int64_t limit = 0;  // questions, of each task; 0: all
  uint64_t seed = 0;  // of shuffles
};

// Grade-school mathematics in the form of lm-evaluation-harness's task gsm8k. Lines of {"question", "answer"}, where an answer ends
// in "#### N". Strict: the number behind "#### ". Flexible: the last number.
Result<std::unique_ptr<QuestionSet>> open_gsm8k(const QuestionFile& file);

// GPQA in the form of simple-evals: four options in an order that seed, question and repeat decide. A table (CSV, or lines of JSON)
// with "Question", "Correct Answer", "Incorrect Answer 1" to 3. Strict: the last "Answer: X". Flexible: else the last "(X)".
Result<std::unique_ptr<QuestionSet>> open_gpqa(const QuestionFile& file);

struct EvalQuestion {
  std::string task, question, answer;
};
// Lines of {"task", "question", "answer"}, at most `limit` of each task (0: all). kIo or kCorrupt names the file, the line, what was
// wanted and what was found.
Result<std::vector<EvalQuestion>> read_questions(const std::string& path, int64_t limit);
// Such a file; a strict and a flexible match are the same.
Result<std::unique_ptr<QuestionSet>> open_questions(const QuestionFile& file);

// An answer is right when it is the wanted text, apart from white space around it and a full stop after it.
bool same_answer(const std::string& wanted, const std::string& found);

// What the graders read. "[invalid]" where there is nothing, as lm-evaluation-harness says.
inline constexpr const char* kNoAnswer = "[invalid]";
std::string strict_number(const std::string& answer);
std::string flexible_number(const std::string& answer);
bool same_number(const std::string& wanted, const std::string& found);
std::string strict_choice(const std::string& answer);
std::string flexible_choice(const std::string& answer);

}  // namespace sluice
