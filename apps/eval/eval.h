// Measures accuracy on questions with exact answers.
#pragma once
#include <string>
#include <vector>

#include "apps/common/chat.h"
#include "apps/common/commands.h"
#include "client/question_set.h"

namespace sluice::apps {

struct EvalOptions {
  ModelFlags model;
  ChatFlags chat;
  SamplingParams sampling = {.temperature = 0};
  // A file of lines {"task", "question", "answer"}; empty: eval.jsonl in the model's directory.
  std::string questions;
  int64_t limit = 0;  // questions per task; 0: all
};

struct EvalTask {
  std::string task;
  int64_t questions = 0, right = 0;
};
struct EvalMistake {
  EvalQuestion question;
  std::string found;
};
struct EvalReport {
  std::string model, device;
  std::vector<EvalTask> tasks;  // in the file's order
  std::vector<EvalMistake> mistakes;
  int64_t prompt_tokens = 0, completion_tokens = 0;
  int64_t cached_tokens = 0;  // prompt tokens found in the prefix cache
  double seconds = 0;
  int64_t questions() const;
  int64_t right() const;
};

// Calls `progress(done, all)` after each answer.
Result<EvalReport> evaluate(const EvalOptions& options,
                            const std::function<void(int64_t, int64_t)>& progress);

std::string eval_json(const EvalReport& report);
// The command: prints the report.
int eval_model(const EvalOptions& options, Format format);

}  // namespace sluice::apps
