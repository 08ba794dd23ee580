// What the flags of several subcommands share. CLI11 is heavy: flags.h and the files that are named *flags.cc include it, and main.cc.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "apps/common/chat.h"
#include "base/status.h"
#include "nn/moe/layer.h"

namespace sluice::apps {

// A subcommand, and what to do when it was named. Options live as long as the closure.
struct Command {
  CLI::App* app;
  std::function<int()> run;
};

// The first option or word that no subcommand takes, with the nearest known one.
Status unknown_flag(const CLI::App& app);

// Sets the values behind "=" apart where CLI11 would lose them: it takes the next word for the value of "--flag=", and "=x" for that of
// "-f=x". kInvalidArgument: a flag without values has an empty one.
Status set_apart_values(const CLI::App& root, std::vector<std::string>* words);

// What a number must be. The error names the option, what was wanted and what was found.
CLI::Validator integer_between(int64_t least, int64_t most);  // INT64_MAX: no bound
CLI::Validator number_between(double least, double most);
CLI::Validator seed_number();
// Counts, separated by commas; `counts` has the default.
CLI::Option* add_counts(CLI::App* app, const std::string& flag, std::vector<int64_t>* counts, int64_t least,
                        int64_t most, const std::string& says);
CLI::Validator some_text();  // not empty
constexpr int kThreadsMax = 1024;

// --moe-backend and its like, of one group of the help ("": none).
void add_moe_backend(CLI::App* app, MoeBackend* backend, const std::string& group = "");

// A model and how it runs; how it is asked. The flags must outlive `app`.
void add_model_flags(CLI::App* app, ModelFlags* flags);
void add_chat_flags(CLI::App* app, ChatFlags* flags);

// How an answer is drawn.
void add_sampling_flags(CLI::App* app, RequestSampling* sampling);
// --routing, of random weights.
CLI::Option* add_routing(CLI::App* app, const std::function<void(Routing)>& take);

}  // namespace sluice::apps
