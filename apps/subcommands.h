// The subcommands of sluice. Each function adds a subcommand with its flags, and returns it with the function that runs it.
#pragma once
#include <string>
#include <vector>

#include "apps/common/flags.h"

namespace sluice::apps {

// `words` are the arguments after the subcommand. If one of them is an operation, its fields become options.
Command add_explain(CLI::App& root, const std::vector<std::string>& words);
Command add_run(CLI::App& root);
Command add_serve(CLI::App& root);
Command add_eval(CLI::App& root);
Command add_bench(CLI::App& root);
Command add_inspect(CLI::App& root);
Command add_make_checkpoint(CLI::App& root);
Command add_bench_serve(CLI::App& bench);
Command add_moe(CLI::App& root);
Command add_devices(CLI::App& root);
Command add_collect_env(CLI::App& root);

}  // namespace sluice::apps
