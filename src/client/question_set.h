// Question sets whose answers a program can grade.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"

namespace sluice {

struct EvalPrompt {
  int64_t question = 0;  // index in the file
  std::string task;      // accuracy is reported per task
  std::string text, wanted;
};

struct Grade {
  // whether the answer is correct by the strict and by the flexible rule
  bool strict = false, flexible = false;
  std::string found;  // the answer that the grader extracted
};

class QuestionSet {
 public:
  virtual ~QuestionSet() = default;
  // Deterministic: the same repeat gives the same prompts in every process.
  virtual std::vector<EvalPrompt> prompts(int64_t repeat) const = 0;
  virtual Grade grade(const EvalPrompt& prompt, const std::string& answer) const = 0;
  virtual std::vector<std::string> stops() const { return {}; }
};

struct QuestionFile {
  std::string path;
  // gsm8k: the file of the worked examples; empty: the first lines of `path`.
  std::string shots_path = {};
  int64_t shots = 5;  // number of worked examples
  int64_t limit = 0;  // questions per task; 0: all
  uint64_t seed = 0;  // seed of the shuffles
};

// GSM8K (grade-school mathematics) in the form of lm-evaluation-harness's task gsm8k. The file has lines of {"question", "answer"}, where
// answers end in "#### N". The strict rule reads the number after "#### ", the flexible rule the last number.
Result<std::unique_ptr<QuestionSet>> open_gsm8k(const QuestionFile& file);

// GPQA in the form of simple-evals. Seed, question and repeat determine the order of the four options. The file is CSV or lines of JSON, with
// "Question", "Correct Answer" and "Incorrect Answer 1" to 3. The strict rule reads the last "Answer: X"; the flexible rule, if none, "(X)".
Result<std::unique_ptr<QuestionSet>> open_gpqa(const QuestionFile& file);

struct EvalQuestion {
  std::string task, question, answer;
};
// Reads lines of {"task", "question", "answer"}, at most `limit` per task (0: all). The messages of kIo and kCorrupt name the file, the line,
// and the expected and found values.
Result<std::vector<EvalQuestion>> read_questions(const std::string& path, int64_t limit);
// A question set from a file of read_questions(). Its strict and its flexible rule are the same.
Result<std::unique_ptr<QuestionSet>> open_questions(const QuestionFile& file);

// Whether the texts are equal, ignoring surrounding white space and a final full stop.
bool same_answer(const std::string& wanted, const std::string& found);

// The text to report if no answer was extracted, as in lm-evaluation-harness.
inline constexpr const char* kNoAnswer = "[invalid]";
std::string strict_number(const std::string& answer);
std::string flexible_number(const std::string& answer);
bool same_number(const std::string& wanted, const std::string& found);
std::string strict_choice(const std::string& answer);
std::string flexible_choice(const std::string& answer);

}  // namespace sluice
