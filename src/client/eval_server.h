// Measures the accuracy of the model behind any OpenAI-compatible server, with confidence intervals.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "client/accuracy.h"
#include "client/api_client.h"
#include "client/question_set.h"

namespace sluice {

struct ServerEvalOptions {
  ServerUrl server;
  ApiBackend backend = ApiBackend::kOpenaiChat;
  std::string model;  // empty: the first of /v1/models
  std::string api_key;
  double timeout = 60 * 60;        // seconds per request
  std::string task = "questions";  // questions, gsm8k, gpqa
  QuestionFile file;
  int64_t repeat = 1;  // how often each question is asked, every time with another shuffle and sampling seed
  int64_t max_concurrency = 32;
  std::optional<double> temperature = 0, top_p = {};  // nullopt: the server's default
  std::optional<int64_t> max_tokens = {};  // nullopt: 256 for /v1/completions, else the server's default
  std::string reasoning_effort;            // empty: the server's default
};

struct ServerAnswer {
  int64_t question = 0, repeat = 0;
  std::string task, wanted, text;
  Grade grade;
  std::string error;  // empty if the request succeeded; a failed request counts as a wrong answer
};

// The accuracy, with the strict or the flexible match.
struct Score {
  int64_t questions = 0;
  double right = 0;                  // sum over all questions of the question's mean over its repeats
  Interval interval = {};            // 95% interval; repeats do not count as additional questions
  std::vector<double> repeats = {};  // accuracy of each repeat
  double accuracy() const { return questions ? right / static_cast<double>(questions) : 0; }
};

struct ServerEval {
  std::string server, model, task;
  uint64_t seed = 0;
  int64_t repeat = 1;
  std::vector<ServerAnswer> answers = {};  // ordered by repeat and question
  int64_t failed = 0, prompt_tokens = 0, completion_tokens = 0;
  double seconds = 0;
};
Score score_of(const std::vector<ServerAnswer>& answers, bool Grade::*match, int64_t repeat);

Result<ServerEval> evaluate_server(const ServerEvalOptions& options,
                                   const std::function<void(int64_t, int64_t)>& progress);

std::string server_eval_text(const ServerEval& eval);
std::string server_eval_json(const ServerEval& eval);

// A comparison of two results of server_eval_json(), question by question.
struct EvalComparison {
  std::string name_a, name_b, task;
  int64_t questions = 0, repeat = 1;
  double accuracy_a = 0, accuracy_b = 0;  // with the flexible match
  int64_t better_a = 0, better_b = 0;     // questions that one model answers correctly more often
  Interval difference = {};               // 95% interval of b - a, from the differences per question
  double p = 1;                           // p-value of equal quality, by McNemar's exact test
};
// kCorrupt: a file is not a result of server_eval_json(), or the two results differ in questions, shuffles or repeats.
Result<EvalComparison> compare_evals(const std::string& path_a, const std::string& path_b);
std::string comparison_text(const EvalComparison& comparison);

}  // namespace sluice
