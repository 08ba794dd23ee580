#include "apps/eval/eval.h"

#include <algorithm>
#include <chrono>
#include <map>

namespace sluice::apps {
namespace {

EvalTask& task_of(EvalReport* report, const std::string& name) {
  for (EvalTask& t : report->tasks)
    if (t.task == name) return t;
  report->tasks.push_back({.task = name});
  return report->tasks.back();
}

// Runs all requests of an evaluation, as many at a time as the engine accepts.
class Run {
 public:
  Run(Session& session, Chat& chat, const EvalOptions& options, const ChatOptions& system)
      : session_(session), chat_(chat), options_(options), system_(system) {}

  Status add(const std::vector<EvalQuestion>& questions) {
    for (const EvalQuestion& q : questions) {
      Conversation c{.options = system_, .messages = {user_message(q.question)}};
      auto prompt = chat_.prompt(c);
      if (!prompt.ok()) return prompt.status();
      const int64_t prompt_tokens = std::ssize(prompt.value());
      const auto id = session_.engine->add(
          {.prompt = std::move(prompt).value(), .sampling = chat_.sampling(options_.sampling)});
      if (!id.ok()) return id.status();
      open_.emplace(id.value(), Open{&q, ReplyReader(chat_.format(), system_, {}), prompt_tokens});
    }
    return {};
  }
  Status step(EvalReport* report) {
    const auto tokens = session_.engine->step();
    if (!tokens.ok()) return tokens.status();
    for (const GeneratedToken& token : tokens.value()) {
      ++report->completion_tokens;
      Open& open = open_.at(token.request);
      open.reader.push(token);
      if (token.finish == FinishReason::kNone) continue;
      report->prompt_tokens += open.prompt_tokens;
      report->cached_tokens += token.cached_tokens;
      close(*open.question, open.reader.finish(), report);
      open_.erase(token.request);
    }
    return {};
  }

 private:
  struct Open {
    const EvalQuestion* question;
    ReplyReader reader;
    int64_t prompt_tokens;
  };
  static void close(const EvalQuestion& q, const Reply& reply, EvalReport* report) {
    EvalTask& task = task_of(report, q.task);
    if (same_answer(q.answer, reply.text)) {
      ++task.right;
    } else {
      report->mistakes.push_back({q, reply.text});
    }
  }
  Session& session_;
  Chat& chat_;
  const EvalOptions& options_;
  ChatOptions system_;
  std::map<int64_t, Open> open_;
};

}  // namespace

int64_t EvalReport::questions() const {
  int64_t sum = 0;
  for (const EvalTask& t : tasks) sum += t.questions;
  return sum;
}
int64_t EvalReport::right() const {
  int64_t sum = 0;
  for (const EvalTask& t : tasks) sum += t.right;
  return sum;
}

Result<EvalReport> evaluate(const EvalOptions& options,
                            const std::function<void(int64_t, int64_t)>& progress) {
  ChatFlags flags = options.chat;
  // The date in the prompt is fixed, so that results do not depend on the day.
  if (flags.current_date.empty()) flags.current_date = "2025-06-28";
  const auto system = chat_options(flags);
  if (!system.ok()) return system.status();
  const auto directory = model_directory(options.model.model);
  if (!directory.ok()) return directory.status();
  const std::string path = options.questions.empty() ? directory.value() + "/eval.jsonl" : options.questions;
  const auto questions = read_questions(path, options.limit);
  if (!questions.ok()) return questions.status();
  const auto format = load_chat_format(options.model, options.chat);
  if (!format.ok()) return format.status();
  auto session = open_session(options.model);
  if (!session.ok()) return session.status();
  Session& s = session.value();
  auto chat = Chat::open(s, format.value());
  if (!chat.ok()) return chat.status();
  EvalReport report{.model = s.directory, .device = devices_text(s), .tasks = {}, .mistakes = {}};
  for (const EvalQuestion& q : questions.value()) ++task_of(&report, q.task).questions;
  const auto start = std::chrono::steady_clock::now();
  Run run(s, chat.value(), options, system.value());
  SLUICE_TRY(run.add(questions.value()));
  while (!s.engine->idle()) {
    SLUICE_TRY(run.step(&report));
    if (progress) progress(report.right() + static_cast<int64_t>(report.mistakes.size()), report.questions());
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace sluice::apps
