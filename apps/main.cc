// The command line of sluice: the one file that includes CLI11.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>

#include "apps/commands.h"
#include "dispatch/any_op.h"

namespace sluice::apps {

int wrong_use(std::string_view message) {
  std::fprintf(stderr, "sluice: %.*s\n", static_cast<int>(message.size()), message.data());
  return kExitWrongUse;
}

namespace {

constexpr const char* kExamples = R"(Examples:
  sluice explain                              lists the operations
  sluice explain router_gemm --contract       its fields and tensors
  sluice explain router_gemm --tokens 1 --experts 128 --hidden 2880 --bias --device h200
  sluice explain expert_gemm --rows 256 --experts 128 --sweep tokens --tokens-max 4096 --json
  sluice moe gpt-oss-120b --tokens 1,8,64     a layer on this machine, checked and timed
  sluice devices
  sluice collect-env

Exit status: 0 an answer, 1 nobody accepts the problem, 2 wrong use.)";

// A subcommand, and what to do when it was named. Options live as long as the closure.
struct Command {
  CLI::App* app;
  std::function<int()> run;
};

std::string with_dashes(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

// "--top_k,--top-k": both spellings of a field.
std::string flags_of(std::string_view field) {
  const std::string name(field), dashed = with_dashes(name);
  return "--" + name + (dashed == name ? "" : ",--" + dashed);
}

// The operation among the words behind "explain": its fields become options, so that --help lists them.
std::unique_ptr<AnyProblem> named_op(const std::vector<std::string>& words) {
  for (const std::string& word : words)
    if (auto problem = make_problem(word); problem.ok()) return std::move(problem).value();
  return nullptr;
}

// Options left over: the first one is named, with its nearest neighbour.
Status unknown_flag(const CLI::App& app) {
  const std::vector<std::string> left = app.remaining();
  if (left.empty()) return {};
  const auto flag = std::find_if(left.begin(), left.end(), [](const std::string& w) { return w[0] == '-'; });
  if (flag == left.end()) return invalid("unexpected argument '" + left.front() + "'");
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  return unknown_name("flag", flag->substr(0, flag->find('=')), known);
}

struct ExplainFlags {
  ExplainOptions options;
  std::vector<std::pair<std::string, std::string>> typed;  // a value for each field; empty: not given
  std::string sweep, model;
  bool json = false, contract = false;
};

void add_fields(CLI::App* app, AnyProblem& problem, ExplainFlags* flags) {
  const std::vector<Field> fields = problem.fields();
  flags->typed.reserve(fields.size());  // options point into it
  for (const Field& f : fields) {
    std::string& value = flags->typed.emplace_back(std::string(f.name), "").second;
    const std::string doc(f.doc);
    CLI::Option* option = is_switch(f) ? app->add_flag(flags_of(f.name), value, doc)
                                       : app->add_option(flags_of(f.name), value, doc);
    option->group("Fields of " + std::string(problem.op()))->default_str(f.value_text());
  }
}

int run_explain(const CLI::App& app, ExplainFlags& flags) {
  ExplainOptions& o = flags.options;
  if (!o.op.empty())
    if (const auto known = make_problem(o.op); !known.ok()) return wrong_use(known.status().message);
  if (const Status status = unknown_flag(app); !status.ok())
    return wrong_use(o.op.empty() ? status.message + " (name an operation to set its fields)"
                                  : status.message);
  for (const auto& [name, value] : flags.typed) {
    if (value.empty()) continue;
    // A flag without a value arrives as "true".
    o.fields.emplace_back(name, value == "true" ? "1" : value == "false" ? "0" : value);
  }
  o.format = flags.json ? Format::kJson : Format::kText;
  if (!flags.sweep.empty()) o.show = Show::kSweep;
  if (flags.contract) o.show = Show::kContract;
  if (!flags.model.empty()) o.model = flags.model;
  if (o.model && !o.op.empty()) return wrong_use("explain: wanted an operation or --model, found both");
  return explain(o);
}

Command add_explain(CLI::App& root, const std::vector<std::string>& words) {
  CLI::App* app = root.add_subcommand("explain", "which kernel would run, and why not the others");
  const auto flags = std::make_shared<ExplainFlags>();
  app->allow_extras();
  app->add_option("op", flags->options.op, "the operation; none: lists them");
  app->add_option("--device", flags->options.device, "a device of `sluice devices`; none: this machine");
  app->add_option("--force", flags->options.policy.force, "the only kernel allowed");
  app->add_flag("--batch-invariant", flags->options.policy.batch_invariant,
                "only kernels whose rows do not depend on each other");
  app->add_option("--sweep", flags->sweep, "prints the choice for each count of tokens")
      ->check(CLI::IsMember({"tokens"}));
  app->add_option("--tokens-max", flags->options.tokens_max, "the sweep's last count")->capture_default_str();
  app->add_flag("--json", flags->json, "the answer as JSON");
  app->add_flag("--contract", flags->contract, "prints fields and tensors");
  app->add_option("--model", flags->model,
                  "a model's directory, or the name of a known MoE layer: all that it runs");
  if (const auto problem = named_op(words)) {
    add_fields(app, *problem, flags.get());
  } else {
    app->add_option("--tokens", flags->options.tokens, "with --model: tokens of the step")
        ->capture_default_str();
    app->add_option("--max-model-len", flags->options.max_model_len,
                    "with --model: tokens of a sequence; 0: the model's context, at most 4096");
  }
  return {app, [app, flags] { return run_explain(*app, *flags); }};
}

Command add_moe(CLI::App& root) {
  CLI::App* app =
      root.add_subcommand("moe", "one MoE layer of a known model on this machine, checked and timed");
  const auto options = std::make_shared<MoeLayerOptions>();
  const auto json = std::make_shared<bool>(false);
  app->add_option("model", options->model, "one of " + known_moe_names())->capture_default_str();
  app->add_option("--tokens", options->tokens, "counts to time, parted by commas")
      ->delimiter(',')
      ->capture_default_str();
  app->add_option("--threads", options->threads, "threads of the CPU; 0: one for each processor")
      ->capture_default_str();
  app->add_option("--seed", options->seed, "of weights and activations")->capture_default_str();
  app->add_flag("--json", *json, "the answer as JSON");
  app->allow_extras();
  return {app, [app, options, json] {
            if (const Status status = unknown_flag(*app); !status.ok()) return wrong_use(status.message);
            return moe(*options, *json ? Format::kJson : Format::kText);
          }};
}

Command add_devices(CLI::App& root) {
  CLI::App* app = root.add_subcommand("devices", "this machine, and the devices that explain knows");
  const auto json = std::make_shared<bool>(false);
  app->add_flag("--json", *json, "the answer as JSON");
  return {app, [json] { return devices(*json ? Format::kJson : Format::kText); }};
}

Command add_collect_env(CLI::App& root) {
  CLI::App* app = root.add_subcommand("collect-env", "what a report of a fault should contain");
  return {app, [] { return collect_env(); }};
}

// Whether the first word is meant as a subcommand and is none.
Status unknown_command(const CLI::App& root, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return {};
  std::vector<std::string> known;
  for (const CLI::App* command : root.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_name() == argv[1]) return {};
    known.push_back(command->get_name());
  }
  return unknown_name("command", argv[1], known);
}

int run(int argc, char** argv) {
  CLI::App root("Sluice: the Mixture-of-Experts layer, and why it runs what it runs.", "sluice");
  root.set_version_flag("--version", std::string("sluice ") + SLUICE_VERSION);
  root.footer(kExamples);
  root.require_subcommand(0, 1);
  const std::vector<std::string> words(argv + std::min(argc, 2), argv + argc);
  const Command commands[] = {add_explain(root, words), add_moe(root), add_devices(root),
                              add_collect_env(root)};
  try {
    root.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    return root.exit(asked), kExitOk;
  } catch (const CLI::ParseError& error) {
    if (const Status status = unknown_command(root, argc, argv); !status.ok())
      return wrong_use(status.message);
    return wrong_use(std::string(error.what()) + " (see sluice --help)");
  }
  for (const Command& command : commands)
    if (command.app->parsed()) return command.run();
  std::fputs(root.help().c_str(), stderr);
  return kExitWrongUse;
}

}  // namespace
}  // namespace sluice::apps

int main(int argc, char** argv) {
  try {
    return sluice::apps::run(argc, argv);
  } catch (const std::exception& error) {
    return sluice::apps::wrong_use(error.what());
  }
}
