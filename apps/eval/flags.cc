// The flags of sluice eval.
#include <memory>

#include "apps/common/commands.h"
#include "apps/common/flags.h"
#include "apps/eval/eval.h"
#include "apps/eval/server_flags.h"
#include "apps/subcommands.h"

namespace sluice::apps {

Command add_eval(CLI::App& root) {
  CLI::App* app = root.add_subcommand("eval", "measure a model's accuracy on questions with exact answers");
  struct Flags {
    EvalOptions options;
    bool json = false;
  };
  const auto flags = std::make_shared<Flags>();
  flags->options.model.cpu_num_seqs = 32;
  add_model_flags(app, &flags->options.model);
  add_chat_flags(app, &flags->options.chat);
  add_sampling_flags(app, &flags->options.sampling);
  app->add_option(
      "--questions", flags->options.questions,
      R"(a file of lines {"task", "question", "answer"}; default: eval.jsonl in the model's directory)");
  app->add_option("--limit", flags->options.limit, "questions per task; 0: all")
      ->capture_default_str()
      ->check(integer_between(0, INT64_MAX));
  app->add_flag("--json", flags->json, "print JSON, with every mistake");
  const EvalByServer by_server = add_eval_server(app);
  app->allow_extras();
  return {app, [app, flags, by_server] {
            if (const Status status = unknown_flag(*app); !status.ok()) return wrong_use(status.message);
            if (const auto status = by_server(flags->options, flags->json)) return *status;
            return eval_model(flags->options, flags->json ? Format::kJson : Format::kText);
          }};
}

}  // namespace sluice::apps
