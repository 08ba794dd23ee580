// The flags of sluice run.
#include <memory>

#include "apps/common/commands.h"
#include "apps/common/flags.h"
#include "apps/run/run.h"
#include "apps/subcommands.h"

namespace sluice::apps {

Command add_run(CLI::App& root) {
  CLI::App* app = root.add_subcommand("run", "answer a prompt, or chat interactively without one");
  struct Flags {
    RunOptions options;
    bool json = false, show = false, hide = false;
  };
  const auto flags = std::make_shared<Flags>();
  add_model_flags(app, &flags->options.model);
  add_chat_flags(app, &flags->options.chat);
  add_sampling_flags(app, &flags->options.sampling);
  CLI::Option* prompt = app->add_option("-p,--prompt", flags->options.prompt,
                                        "the prompt; -: read standard input; default: chat interactively");
  app->add_option("-f,--file", flags->options.prompt_file, "a file with the prompt")->excludes(prompt);
  app->add_option("-r,--stop,--reverse-prompt", flags->options.stop,
                  "stop string: the answer ends before it; may be repeated")
      ->allow_extra_args(false)
      ->check(some_text());
  app->add_option("-j,--json-schema,--json-schema-file", flags->options.json_schema,
                  "a JSON schema that the answer must match, or a file with one")
      ->check(some_text());
  app->add_flag("--ignore-eos", flags->options.sampling.ignore_eos,
                "continue past the end-of-sequence token, up to the token limit");
  app->add_flag("--show-reasoning", flags->show,
                "always print the reasoning to standard error; default: only on a terminal");
  app->add_flag("--hide-reasoning", flags->hide, "never print the reasoning");
  app->add_flag("--json", flags->json, "print the answer as JSON; needs -p or -f");
  app->add_option("--logprobs", flags->options.sampling.logprobs,
                  "with --json: log probabilities of the answer's tokens and of this many top tokens")
      ->check(integer_between(0, kTopLogprobsMax));
  app->allow_extras();
  return {
      app, [app, flags] {
        if (const Status status = unknown_flag(*app); !status.ok()) return wrong_use(status.message);
        RunOptions& o = flags->options;
        if (flags->json && !o.prompt && !o.prompt_file)
          return wrong_use("--json: needs a prompt (-p or -f), found none");
        if (o.sampling.logprobs && !flags->json) return wrong_use("--logprobs: needs --json, found none");
        if (o.sampling.ignore_eos && o.json_schema)
          return wrong_use(
              "--ignore-eos: cannot be combined with --json-schema, which determines where an answer ends");
        if (flags->show && flags->hide)
          return wrong_use("--show-reasoning: cannot be combined with --hide-reasoning");
        if (flags->json) o.format = Format::kJson;
        if (flags->show) o.reasoning = Reasoning::kShow;
        if (flags->hide) o.reasoning = Reasoning::kHide;
        return run_model(o);
      }};
}

}  // namespace sluice::apps
