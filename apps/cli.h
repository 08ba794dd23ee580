// The command line: the files named cli_* include CLI11, and nothing else does.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "apps/chat.h"
#include "base/status.h"
#include "nn/moe.h"

namespace sluice::apps {

// A subcommand, and what to do when it was named. Options live as long as the closure.
struct Command {
  CLI::App* app;
  std::function<int()> run;
};

// The first option or word that no subcommand takes, with the nearest known one.
Status unknown_flag(const CLI::App& app);

// What a number must be. The error names the option, what was wanted and what was found.
CLI::Validator integer_between(int64_t least, int64_t most);  // INT64_MAX: no bound
CLI::Validator number_between(double least, double most);
CLI::Validator seed_number();
CLI::Validator some_text();  // not empty
constexpr int kThreadsMax = 1024;

// --moe-backend and its like, of one group of the help ("": none).
void add_moe_backend(CLI::App* app, MoeBackend* backend, const std::string& group = "");

// A model and how it runs; how it is asked. The flags must outlive `app`.
void add_model_flags(CLI::App* app, ModelFlags* flags);
void add_chat_flags(CLI::App* app, ChatFlags* flags);

// `words` are those after the subcommand: an operation among them adds its fields as options.
Command add_explain(CLI::App& root, const std::vector<std::string>& words);
Command add_run(CLI::App& root);
Command add_serve(CLI::App& root);
Command add_eval(CLI::App& root);
Command add_bench(CLI::App& root);
Command add_inspect(CLI::App& root);
Command add_draft(CLI::App& root);
Command add_make_checkpoint(CLI::App& root);

}  // namespace sluice::apps
