// Accuracy of the model behind any OpenAI server, such that two of them can be told apart.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "client/accuracy.h"
#include "client/api_client.h"
#include "client/question_set.h"

namespace sluice {

struct ServerEvalOptions {
  ServerUrl server;
  ApiBackend backend = ApiBackend::kOpenaiChat;
  std::string model;  // empty: the server's first
  std::string api_key;
  double timeout = 60 * 60;        // seconds of a request
  std::string task = "questions";  // questions, gsm8k, gpqa
  QuestionFile file;
  int64_t repeat = 1;  // each question so often, with other shuffles and seeds of draws
  int64_t max_concurrency = 32;
  double temperature = 0, top_p = -1;  // below 0: the server's own
  int64_t max_tokens = 0;              // 0: 256 of /v1/completions, else the server's own
  std::string reasoning_effort;        // empty: the server's own
};

struct ServerAnswer {
  int64_t question = 0, repeat = 0;
  std::string task, wanted, text;
  Grade grade;
  std::string error;  // empty: there was an answer; else it counts as wrong
};

// Of one kind of match.
struct Score {
  int64_t questions = 0;
  double right = 0;                  // the sum of each question's mean over its repeats
  Interval interval = {};            // 95%, of questions: repeats of one are no new ones
  std::vector<double> repeats = {};  // the accuracy of each
  double accuracy() const { return questions ? right / static_cast<double>(questions) : 0; }
};

struct ServerEval {
  std::string server, model, task;
  uint64_t seed = 0;
  int64_t repeat = 1;
  std::vector<ServerAnswer> answers = {};  // by repeat and question
  int64_t failed = 0, prompt_tokens = 0, completion_tokens = 0;
  double seconds = 0;
};
Score score_of(const std::vector<ServerAnswer>& answers, bool Grade::*match, int64_t repeat);

Result<ServerEval> evaluate_server(const ServerEvalOptions& options,
                                   const std::function<void(int64_t, int64_t)>& progress);

std::string server_eval_text(const ServerEval& eval);
std::string server_eval_json(const ServerEval& eval);

// Two results of server_eval_json() over the same questions, compared question by question.
struct EvalComparison {
  std::string name_a, name_b, task;
  int64_t questions = 0, repeat = 1;
  double accuracy_a = 0, accuracy_b = 0;  // by the flexible match
  int64_t better_a = 0, better_b = 0;     // questions that one answers rightly more often than the other
  Interval difference = {};               // of b - a, 95%, from the questions' own differences
  double p = 1;                           // that the two are equally good: McNemar's exact test
};
// kCorrupt: a file that is no such result, or results of other questions, shuffles or repeats.
Result<EvalComparison> compare_evals(const std::string& path_a, const std::string& path_b);
std::string comparison_text(const EvalComparison& comparison);

}  // namespace sluice
