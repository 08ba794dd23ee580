// The flags of sluice bench.
#include <memory>

#include "apps/bench/bench_model.h"
#include "apps/bench/bench_report.h"
#include "apps/common/commands.h"
#include "apps/common/flags.h"
#include "apps/subcommands.h"

namespace sluice::apps {

Command add_bench(CLI::App& root) {
  CLI::App* app = root.add_subcommand(
      "bench", "how fast a model answers on this machine, compared with what its steps must read");
  struct Flags {
    BenchOptions options;
    ReportOptions report;
    bool json = false;
  };
  const auto flags = std::make_shared<Flags>();
  flags->options.model.prefix_caching = false;  // prompts that are alike are timed as if they were not
  add_model_flags(app, &flags->options.model);
  add_counts(app, "--input-len", &flags->options.input_len, 1, INT32_MAX,
             "tokens of a prompt, on a GPU those before the steps that are timed: counts, separated by "
             "commas; none: 1024 on a GPU, else 128");
  add_counts(
      app, "--prefill-len", &flags->options.prefill_len, 1, INT32_MAX,
      "tokens of prompts that are timed alone, likewise; none: 4096,8192 on a GPU, else no such prompts");
  app->add_option("--csv", flags->options.csv, "a file that gets the rows in the columns of bench/measured");
  app->add_option("--csv-version", flags->options.csv_version, "the version that those rows name: a commit")
      ->capture_default_str();
  app->add_option("--output-len", flags->options.output_len, "tokens of an answer, on the CPU")
      ->capture_default_str()
      ->check(integer_between(2, INT32_MAX));
  add_counts(app, "--max-concurrency", &flags->options.concurrency, 1, kStepTokensMax,
             "sequences at once, likewise; none: 1,8,32,64,128,256 on a GPU, else 1,4");
  app->add_option(
         "--speculative-synthetic-acceptance", flags->options.model.speculation.synthetic_acceptance,
         "with --speculative-config: drafts are random tokens, and the first, second, ... of them counts as "
         "accepted in so many steps: shares, separated by commas, each at most the one before")
      ->delimiter(',')
      ->check(number_between(0, 1));
  app->add_flag("--json", flags->json, "the answer as JSON");
  app->allow_extras();
  CLI::App* report = app->add_subcommand("report", "figures and tables from measured rows; needs no GPU");
  report
      ->add_option("--from", flags->report.from,
                   "the folder of router.csv, routing.csv, mxfp4.csv, bf16.csv, engine.csv")
      ->capture_default_str();
  report->add_option("--to", flags->report.to, "gets the pages, as Markdown and SVG")->capture_default_str();
  report->add_option("--readme", flags->report.readme,
                     "a README: gets a table of mxfp4.csv between its two marks");
  report->allow_extras();
  const Command serve = add_bench_serve(*app);
  return {app, [app, report, serve, flags] {
            if (serve.app->parsed()) return serve.run();
            const CLI::App& asked = report->parsed() ? *report : *app;
            if (const Status status = unknown_flag(asked); !status.ok()) return wrong_use(status.message);
            if (report->parsed()) return bench_report_command(flags->report);
            return bench_command(flags->options, flags->json ? Format::kJson : Format::kText);
          }};
}

}  // namespace sluice::apps
