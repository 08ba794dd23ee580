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
      "bench", "measure a model's speed on this machine and compare it with the roofline");
  struct Flags {
    BenchOptions options;
    ReportOptions report;
    bool json = false;
  };
  const auto flags = std::make_shared<Flags>();
  flags->options.model.prefix_caching = false;  // repeated prompts must not be found in the prefix cache
  add_model_flags(app, &flags->options.model);
  add_counts(app, "--input-len", &flags->options.input_len, 1, INT32_MAX,
             "prompt tokens; on a GPU the context of the timed steps: counts separated by "
             "commas; default: 1024 on a GPU, else 128");
  add_counts(
      app, "--prefill-len", &flags->options.prefill_len, 1, INT32_MAX,
      "tokens of prompts that are timed alone, separated by commas; default: 4096,8192 on a GPU, else none");
  app->add_option("--csv", flags->options.csv,
                  "write the rows to this file, in the columns of bench/measured");
  app->add_option("--csv-version", flags->options.csv_version,
                  "version column of those rows, such as a commit")
      ->capture_default_str();
  app->add_option("--output-len", flags->options.output_len, "tokens to generate per sequence, on the CPU")
      ->capture_default_str()
      ->check(integer_between(2, INT32_MAX));
  add_counts(app, "--max-concurrency", &flags->options.concurrency, 1, kStepTokensMax,
             "concurrent sequences, separated by commas; default: 1,8,32,64,128,256 on a GPU, else 1,4");
  app->add_option(
         "--speculative-synthetic-acceptance", flags->options.model.speculation.synthetic_acceptance,
         "with --speculative-config: use random drafts; shares of steps in which the first, second, ... "
         "draft counts as accepted, separated by commas, never increasing")
      ->delimiter(',')
      ->check(number_between(0, 1));
  app->add_flag("--json", flags->json, "print JSON");
  app->allow_extras();
  CLI::App* report =
      app->add_subcommand("report", "write tables and figures from measured rows; needs no GPU");
  report
      ->add_option("--from", flags->report.from,
                   "folder with router.csv, routing.csv, mxfp4.csv, bf16.csv, engine.csv, serving.csv")
      ->capture_default_str();
  report->add_option("--to", flags->report.to, "output folder for the Markdown and SVG files")
      ->capture_default_str();
  report->add_option("--readme", flags->report.readme,
                     "replace the table between this README's two markers by a table of mxfp4.csv");
  report->allow_extras();
  const Command serve = add_bench_serve(*app);
  return {app, [app, report, serve, flags] {
            if (serve.app->parsed()) return serve.run();
            const CLI::App& chosen = report->parsed() ? *report : *app;
            if (const Status status = unknown_flag(chosen); !status.ok()) return wrong_use(status.message);
            if (report->parsed()) return bench_report_command(flags->report);
            return bench_command(flags->options, flags->json ? Format::kJson : Format::kText);
          }};
}

}  // namespace sluice::apps
