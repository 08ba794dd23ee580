#include "client/eval_server.h"

namespace sluice {
namespace {

constexpr int64_t kCompletionTokens = 256;  // as in lm-evaluation-harness

Result<std::unique_ptr<QuestionSet>> open_set(const ServerEvalOptions& o) {
  if (o.task == "gsm8k") return open_gsm8k(o.file);
  if (o.task == "gpqa") return open_gpqa(o.file);
  return open_questions(o.file);
}

std::string body_of(const EvalPrompt& prompt, const ServerEvalOptions& o, const std::string& model,
                    const QuestionSet& set, int64_t repeat) {
  Json body = {{"model", model}, {"seed", (o.file.seed + static_cast<uint64_t>(repeat)) & INT64_MAX}};
  if (o.temperature) body["temperature"] = *o.temperature;
  if (o.top_p) body["top_p"] = *o.top_p;
  if (!set.stops().empty()) body["stop"] = set.stops();
  if (o.backend == ApiBackend::kOpenai) {
    body["prompt"] = prompt.text;
    body["max_tokens"] = o.max_tokens.value_or(kCompletionTokens);
  } else {
    body["messages"] = Json::array({{{"role", "user"}, {"content", prompt.text}}});
    if (o.max_tokens) body["max_completion_tokens"] = *o.max_tokens;
    if (!o.reasoning_effort.empty()) body["reasoning_effort"] = o.reasoning_effort;
  }
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The text of an answer; empty if the content of the message is null.
Result<std::string> text_of(const Json& answer, ApiBackend backend) {
  const auto choices = JsonAt(answer, "answer").at("choices");
  if (!choices.ok()) return choices.status();
  const auto items = choices.value().items();
  if (!items.ok()) return items.status();
  if (items.value().empty()) return choices.value().wrong("a choice");
  if (backend == ApiBackend::kOpenai) return items.value().front().string("text");
  const auto message = items.value().front().at("message");
  if (!message.ok()) return message.status();
  return message.value().string("content", "");
}

// Runs all requests of one evaluation, max_concurrency at a time.
class Asking {
 public:
  Asking(const ServerEvalOptions& options, HttpClient& client, const std::string& model,
         const QuestionSet& set)
      : options_(options), client_(client), model_(model), set_(set) {}

  void run(ServerEval* out, const std::function<void(int64_t, int64_t)>& progress) {
    out_ = out;
    progress_ = progress;
    for (int64_t r = 0; r < options_.repeat; ++r)
      for (EvalPrompt& prompt : set_.prompts(r)) {
        out->answers.push_back({prompt.question, r, prompt.task, prompt.wanted, "", {}, "no answer"});
        prompts_.push_back(std::move(prompt));
      }
    for (int64_t i = 0; i < options_.max_concurrency; ++i) ask_next();
    client_.run();
  }

 private:
  void ask_next() {
    if (next_ == prompts_.size()) return;
    const size_t i = next_++;
    client_.send({.path = endpoint_of(options_.backend),
                  .body = body_of(prompts_[i], options_, model_, set_, out_->answers[i].repeat),
                  .api_key = options_.api_key},
                 std::make_shared<WholeAnswer>([this, i](Result<Json> answer) {
                   take(i, answer);
                   if (progress_) progress_(++done_, std::ssize(prompts_));
                   ask_next();
                 }));
  }

  void take(size_t i, const Result<Json>& answer) {
    ServerAnswer& a = out_->answers[i];
    auto text =
        answer.ok() ? text_of(answer.value(), options_.backend) : Result<std::string>(answer.status());
    if (!text.ok()) {
      a.error = text.status().message;
      ++out_->failed;
      return;
    }
    const JsonAt at(answer.value(), "answer");
    const auto usage = at.has("usage") ? usage_of(at.at("usage").value()) : Result<TokenUsage>(TokenUsage{});
    if (!usage.ok()) {
      a.error = usage.status().message;
      ++out_->failed;
      return;
    }
    a.error.clear();
    a.text = std::move(text).value();
    a.grade = set_.grade(prompts_[i], a.text);
    out_->prompt_tokens += usage.value().prompt_tokens;
    out_->completion_tokens += usage.value().output_tokens;
  }

  const ServerEvalOptions& options_;
  HttpClient& client_;
  std::string model_;
  const QuestionSet& set_;
  ServerEval* out_ = nullptr;
  std::function<void(int64_t, int64_t)> progress_;
  std::vector<EvalPrompt> prompts_;
  size_t next_ = 0;
  int64_t done_ = 0;
};

}  // namespace

Score score_of(const std::vector<ServerAnswer>& answers, bool Grade::*match, int64_t repeat) {
  Score out;
  std::vector<double> right(static_cast<size_t>(repeat), 0.0);
  for (const ServerAnswer& a : answers)
    if (a.grade.*match) right[static_cast<size_t>(a.repeat)] += 1;
  out.questions = std::ssize(answers) / repeat;
  for (const double r : right) {
    out.right += r / static_cast<double>(repeat);
    out.repeats.push_back(out.questions ? r / static_cast<double>(out.questions) : 0);
  }
  out.interval = wilson(out.right, out.questions);
  return out;
}

Result<ServerEval> evaluate_server(const ServerEvalOptions& options,
                                   const std::function<void(int64_t, int64_t)>& progress) {
  const auto set = open_set(options);
  if (!set.ok()) return set.status();
  auto client = HttpClient::open({.server = options.server, .timeout = options.timeout});
  if (!client.ok()) return client.status();
  ServerEval out{.server = options.server.text(), .model = options.model, .task = options.task};
  if (out.model.empty()) {
    const auto first = first_model(*client.value(), options.api_key);
    if (!first.ok()) return first.status();
    out.model = first.value();
  }
  out.seed = options.file.seed;
  out.repeat = options.repeat;
  const auto begin = Clock::now();
  Asking(options, *client.value(), out.model, *set.value()).run(&out, progress);
  out.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  return out;
}

}  // namespace sluice
