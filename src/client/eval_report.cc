// Writes the evaluation of a server as text and as JSON, and compares two evaluations.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <tuple>

#include "base/json.h"
#include "base/printable.h"
#include "client/eval_server.h"

namespace sluice {
namespace {

constexpr int64_t kResultBytesMax = int64_t{1} << 30;
constexpr size_t kReasonsShown = 5;

template <class... Values>
std::string formatted(const char* format, Values... values) {
  char out[400];
  std::snprintf(out, sizeof out, format, values...);
  return out;
}

std::vector<std::string> tasks_of(const ServerEval& eval) {
  std::vector<std::string> out;
  for (const ServerAnswer& a : eval.answers)
    if (std::find(out.begin(), out.end(), a.task) == out.end()) out.push_back(a.task);
  return out;
}

std::vector<ServerAnswer> answers_of(const ServerEval& eval, const std::string& task) {
  std::vector<ServerAnswer> out;
  for (const ServerAnswer& a : eval.answers)
    if (a.task == task) out.push_back(a);
  return out;
}

std::string score_line(const std::string& name, const char* match, const Score& s) {
  std::string out =
      formatted("%-14s %-9s %9.1f %9lld %8.1f%%   [%.1f%%, %.1f%%]", printable(name).substr(0, 100).c_str(),
                match, s.right, static_cast<long long>(s.questions), 100 * s.accuracy(), 100 * s.interval.low,
                100 * s.interval.high);
  if (s.repeats.size() > 1)
    out +=
        formatted("   of %zu repeats %.1f%% to %.1f%%, deviation %.1f%%", s.repeats.size(),
                  100 * *std::min_element(s.repeats.begin(), s.repeats.end()),
                  100 * *std::max_element(s.repeats.begin(), s.repeats.end()), 100 * deviation_of(s.repeats));
  return out + "\n";
}

OrderedJson score_json(const Score& s) {
  return {{"right", s.right},
          {"questions", s.questions},
          {"accuracy", s.accuracy()},
          {"low", s.interval.low},
          {"high", s.interval.high},
          {"repeats", s.repeats},
          {"deviation_of_repeats", deviation_of(s.repeats)}};
}

// The results of one of the two models.
struct Side {
  std::string model, server, task;
  Json seed;
  int64_t repeat = 1;
  std::map<int64_t, double> right;                            // by question: the share of correct repeats
  std::map<std::pair<int64_t, int64_t>, std::string> wanted;  // by question and repeat: the expected answer
};

Result<Side> read_side(const std::string& path) {
  const auto json = read_json(path, kResultBytesMax);
  if (!json.ok()) return json.status();
  const JsonAt root(json.value(), path);
  Side out;
  for (const auto& [key, to] :
       {std::pair{"model", &out.model}, {"server", &out.server}, {"task", &out.task}}) {
    const auto value = root.string(key);
    if (!value.ok()) return value.status();
    *to = value.value();
  }
  const auto seed = root.at("seed");
  const auto repeat = root.integer("repeat", 1, INT32_MAX);
  const auto answers = root.at("answers");
  if (!seed.ok()) return seed.status();
  if (!repeat.ok()) return repeat.status();
  if (!answers.ok()) return answers.status();
  out.seed = seed.value().value();
  out.repeat = repeat.value();
  const auto items = answers.value().items();
  if (!items.ok()) return items.status();
  for (const JsonAt& item : items.value()) {
    const auto question = item.integer("question", 0, INT64_MAX), turn = item.integer("repeat", 0, INT64_MAX);
    const auto wanted = item.string("wanted");
    const auto right = item.boolean("flexible", false);
    for (const Status* s : {&question.status(), &turn.status(), &wanted.status(), &right.status()})
      if (!s->ok()) return *s;
    out.right[question.value()] += right.value() ? 1.0 / static_cast<double>(out.repeat) : 0;
    out.wanted[{question.value(), turn.value()}] = wanted.value();
  }
  return out;
}

}  // namespace

std::string server_eval_text(const ServerEval& eval) {
  std::string out =
      formatted("%-14s %-9s %9s %9s %9s   %s\n", "task", "match", "right", "of", "accuracy", "95% (Wilson)");
  const bool one_match = eval.task == "questions";
  const auto add = [&](const std::string& name, const std::vector<ServerAnswer>& answers) {
    out += score_line(name, one_match ? "exact" : "strict", score_of(answers, &Grade::strict, eval.repeat));
    if (!one_match) out += score_line(name, "flexible", score_of(answers, &Grade::flexible, eval.repeat));
  };
  const std::vector<std::string> tasks = tasks_of(eval);
  for (const std::string& task : tasks) add(task, answers_of(eval, task));
  if (tasks.size() > 1) add("overall", eval.answers);
  out += formatted("\n%lld prompt and %lld completion tokens in %.1f s\n",
                   static_cast<long long>(eval.prompt_tokens), static_cast<long long>(eval.completion_tokens),
                   eval.seconds);
  if (eval.failed == 0) return out;
  std::map<std::string, int64_t> reasons;
  for (const ServerAnswer& a : eval.answers)
    if (!a.error.empty()) ++reasons[a.error];
  out += formatted("%lld requests failed and count as wrong:\n", static_cast<long long>(eval.failed));
  size_t shown = 0;
  for (const auto& [reason, count] : reasons)
    if (shown++ < kReasonsShown) out += std::to_string(count) + " x " + printable(reason) + "\n";
  return out;
}

std::string server_eval_json(const ServerEval& eval) {
  OrderedJson out = {{"server", eval.server},
                     {"model", eval.model},
                     {"task", eval.task},
                     {"seed", eval.seed},
                     {"repeat", eval.repeat},
                     {"strict", score_json(score_of(eval.answers, &Grade::strict, eval.repeat))},
                     {"flexible", score_json(score_of(eval.answers, &Grade::flexible, eval.repeat))},
                     {"failed", eval.failed},
                     {"prompt_tokens", eval.prompt_tokens},
                     {"completion_tokens", eval.completion_tokens},
                     {"seconds", eval.seconds},
                     {"answers", OrderedJson::array()}};
  for (const ServerAnswer& a : eval.answers)
    out["answers"].push_back({{"question", a.question},
                              {"repeat", a.repeat},
                              {"task", a.task},
                              {"wanted", a.wanted},
                              {"found", a.grade.found},
                              {"strict", a.grade.strict},
                              {"flexible", a.grade.flexible},
                              {"error", a.error.empty() ? OrderedJson(nullptr) : OrderedJson(a.error)},
                              {"text", a.text}});
  return out.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

Result<EvalComparison> compare_evals(const std::string& path_a, const std::string& path_b) {
  const auto a = read_side(path_a), b = read_side(path_b);
  if (!a.ok()) return a.status();
  if (!b.ok()) return b.status();
  const auto keys = [](const Side& s) { return std::tie(s.task, s.seed, s.repeat, s.wanted); };
  if (keys(a.value()) != keys(b.value()) || a.value().wanted.empty())
    return Status{Code::kCorrupt, path_b + ": wanted the questions, the seed and the repeats of " + path_a +
                                      ", found different ones"};
  EvalComparison out{.name_a = a.value().model + " at " + a.value().server,
                     .name_b = b.value().model + " at " + b.value().server,
                     .task = a.value().task,
                     .questions = std::ssize(a.value().right),
                     .repeat = a.value().repeat};
  std::vector<double> differences, right_a, right_b;
  for (const auto& [question, share] : a.value().right) {
    const double other = b.value().right.at(question), more = other - share;
    right_a.push_back(share);
    right_b.push_back(other);
    differences.push_back(more);
    const double smallest = 0.5 / static_cast<double>(out.repeat);  // shares are multiples of 1 / repeat
    out.better_a += more < -smallest;
    out.better_b += more > smallest;
  }
  out.accuracy_a = mean_of(right_a);
  out.accuracy_b = mean_of(right_b);
  const double half =
      1.959963984540054 * deviation_of(differences) / std::sqrt(static_cast<double>(out.questions));
  const double mean = mean_of(differences);
  out.difference = {mean - half, mean + half};
  out.p = sign_test(out.better_b, out.better_a);
  return out;
}

std::string comparison_text(const EvalComparison& c) {
  std::string out = "task        " + printable(c.task) + ", " + std::to_string(c.questions) + " questions";
  out += c.repeat > 1 ? ", each " + std::to_string(c.repeat) + " times\n" : "\n";
  out += formatted("A           %.1f%%  ", 100 * c.accuracy_a) + printable(c.name_a) + "\n";
  out += formatted("B           %.1f%%  ", 100 * c.accuracy_b) + printable(c.name_b) + "\n";
  out += formatted("B - A       %+.1f%%, 95%% [%+.1f%%, %+.1f%%]\n", 100 * (c.accuracy_b - c.accuracy_a),
                   100 * c.difference.low, 100 * c.difference.high);
  out += formatted("questions   A better at %lld, B better at %lld\n", static_cast<long long>(c.better_a),
                   static_cast<long long>(c.better_b));
  return out + formatted("p           %.4f (McNemar's exact test; below 0.05: the two differ)\n", c.p);
}

}  // namespace sluice
