#include <unistd.h>

#include <cstdio>

#include "apps/eval/eval.h"
#include "base/printable.h"

namespace sluice::apps {
namespace {

constexpr size_t kMistakesShown = 5;

void print_report(const EvalReport& r) {
  std::printf("%-14s %9s %9s %9s\n", "task", "right", "of", "accuracy");
  const auto line = [](const std::string& name, int64_t right, int64_t all) {
    std::printf("%-14s %9lld %9lld %8.1f%%\n", printable(name).c_str(), static_cast<long long>(right),
                static_cast<long long>(all),
                all ? 100.0 * static_cast<double>(right) / static_cast<double>(all) : 0.0);
  };
  for (const EvalTask& t : r.tasks) line(t.task, t.right, t.questions);
  for (size_t i = 0; i < r.mistakes.size() && i < kMistakesShown; ++i) {
    const EvalMistake& m = r.mistakes[i];
    std::printf("%smistake   %s\n          wanted %s, found %s\n", i == 0 ? "\n" : "",
                printable(m.question.question).c_str(), printable(m.question.answer).c_str(),
                printable(m.found).c_str());
  }
  if (r.mistakes.size() > kMistakesShown)
    std::printf("          and %zu more: --json has them all\n", r.mistakes.size() - kMistakesShown);
  std::printf("\n%lld tokens in %.1f s, %.0f tokens/s; %lld of %lld prompt tokens cached\n",
              static_cast<long long>(r.completion_tokens), r.seconds,
              static_cast<double>(r.completion_tokens) / r.seconds, static_cast<long long>(r.cached_tokens),
              static_cast<long long>(r.prompt_tokens));
  line("overall", r.right(), r.questions());
}

}  // namespace

int eval_model(const EvalOptions& options, Format format) {
  const bool terminal = isatty(STDERR_FILENO) && !options.model.quiet;
  const auto report = evaluate(options, [&](int64_t done, int64_t all) {
    if (terminal)
      std::fprintf(stderr, "\r%lld of %lld questions\033[K%s", static_cast<long long>(done),
                   static_cast<long long>(all), done == all ? "\r\033[K" : "");
  });
  if (!report.ok()) return wrong_use(report.status().message);
  if (format == Format::kJson) {
    const std::string json = eval_json(report.value());
    std::fwrite(json.data(), 1, json.size(), stdout);
  } else {
    print_report(report.value());
  }
  return kExitOk;
}

}  // namespace sluice::apps
