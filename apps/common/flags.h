// Flags that several subcommands share. CLI11 compiles slowly, so only flags.h, *flags.cc and main.cc include it.
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

// A subcommand and the function that runs it. The function owns the subcommand's options.
struct Command {
  CLI::App* app;
  std::function<int()> run;
};

// Returns an error that names the first unknown option or argument and the nearest known option.
Status unknown_flag(const CLI::App& app);

// Says what CLI11 says, with what was wanted and what was found.
std::string wanted_and_found(const CLI::ParseError& error);

// Splits words such as "--flag=" and "-f=x" into flag and value, because CLI11 would use the next word as the value of "--flag=", and "=x" as
// the value of "-f=x". kInvalidArgument: "--flag=" for a flag that takes no value.
Status set_apart_values(const CLI::App& root, std::vector<std::string>* words);

// Validators of numbers. Their errors name the option, the wanted range and the found value.
CLI::Validator integer_between(int64_t minimum, int64_t maximum);  // INT64_MAX: no limit
CLI::Validator number_between(double minimum, double maximum);
CLI::Validator seed_number();
// Adds a flag for a list of counts separated by commas. `counts` has the default and receives the list.
CLI::Option* add_counts(CLI::App* app, const std::string& flag, std::vector<int64_t>* counts, int64_t minimum,
                        int64_t maximum, const std::string& says);
CLI::Validator some_text();  // non-empty
constexpr int kThreadsMax = 1024;

// Adds --moe-backend and related flags. `group` is their group in the help text; empty: the default group.
void add_moe_backend(CLI::App* app, MoeBackend* backend, const std::string& group = "");
// Adds --moe-activations, which sets *fp8 (MoeConfig::fp8_activations).
void add_moe_activations(CLI::App* app, bool* fp8, const std::string& group);

// Flags of the model and of its chats. The structs must outlive `app`.
void add_model_flags(CLI::App* app, ModelFlags* flags);
void add_chat_flags(CLI::App* app, ChatFlags* flags);

// Sampling flags.
void add_sampling_flags(CLI::App* app, SamplingParams* sampling);
// Adds --routing, which sets the routing of random weights.
CLI::Option* add_routing(CLI::App* app, const std::function<void(Routing)>& take);

}  // namespace sluice::apps
