#include "apps/common/json.h"
#include "apps/eval/eval.h"

namespace sluice::apps {

std::string eval_json(const EvalReport& r) {
  const auto share = [](int64_t right, int64_t all) {
    return all ? static_cast<double>(right) / static_cast<double>(all) : 0;
  };
  OrderedJson tasks = OrderedJson::object(), mistakes = OrderedJson::array();
  for (const EvalTask& t : r.tasks)
    tasks[t.task] = {
        {"questions", t.questions}, {"right", t.right}, {"accuracy", share(t.right, t.questions)}};
  for (const EvalMistake& m : r.mistakes)
    mistakes.push_back({{"task", m.question.task},
                        {"question", m.question.question},
                        {"wanted", m.question.answer},
                        {"found", m.found}});
  return json_text({{"model", r.model},
                    {"device", r.device},
                    {"tasks", tasks},
                    {"questions", r.questions()},
                    {"right", r.right()},
                    {"accuracy", share(r.right(), r.questions())},
                    {"mistakes", mistakes},
                    {"prompt_tokens", r.prompt_tokens},
                    {"cached_tokens", r.cached_tokens},
                    {"completion_tokens", r.completion_tokens},
                    {"seconds", r.seconds}});
}

}  // namespace sluice::apps
