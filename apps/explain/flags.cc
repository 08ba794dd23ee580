#include <algorithm>
#include <memory>

#include "apps/common/flags.h"
#include "apps/explain/explain.h"
#include "apps/subcommands.h"
#include "graph/any_op.h"

namespace sluice::apps {
namespace {

constexpr int64_t kSweepTokensMax =
    1 << 20;  // limited, because a sweep computes the workspace of every token count

std::string with_dashes(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

// The two spellings of a field's flag, such as "--top_k,--top-k".
std::string flags_of(std::string_view field) {
  const std::string name(field), dashed = with_dashes(name);
  return "--" + name + (dashed == name ? "" : ",--" + dashed);
}

// Finds the operation among the words after "explain", so that its fields become options and --help lists them.
std::unique_ptr<AnyProblem> named_op(const std::vector<std::string>& words) {
  for (const std::string& word : words)
    if (auto problem = make_problem(word); problem.ok()) return std::move(problem).value();
  return nullptr;
}

struct ExplainFlags {
  ExplainOptions options;
  struct Typed {
    std::string name, value;
    const CLI::Option* option;
  };
  std::vector<Typed> typed;  // one per field
  std::string sweep, model, speculative_config;
  bool json = false, contract = false;
};

void add_fields(CLI::App* app, AnyProblem& problem, ExplainFlags* flags) {
  const std::vector<Field> fields = problem.fields();
  flags->typed.reserve(fields.size());  // must not move its elements, because options point to them
  for (const Field& f : fields) {
    std::string& value = flags->typed.emplace_back(std::string(f.name), "", nullptr).value;
    const std::string doc(f.doc);
    CLI::Option* option = is_switch(f) ? app->add_flag(flags_of(f.name), value, doc)
                                       : app->add_option(flags_of(f.name), value, doc);
    flags->typed.back().option = option;
    option->group("Fields of " + std::string(problem.op()))->default_str(f.value_text());
  }
}

// Refuses flags that this use of the command would ignore.
Status check_uses(const CLI::App& app, const ExplainFlags& flags) {
  const bool op = !flags.options.op.empty(), model = !flags.model.empty(), sweep = !flags.sweep.empty();
  struct Use {
    const char* flag;
    bool useful;
    const char* why;
  };
  const Use uses[] = {
      {"--moe-backend", model, "needs --model, found none (use --force for an operation)"},
      {"--moe-backend-prefill", model, "needs --model, found none (use --force for an operation)"},
      {"--moe-backend-decode", model, "needs --model, found none (use --force for an operation)"},
      {"--moe-decode-tokens", model, "needs --model, found none"},
      {"--moe-activations", model, "needs --model, found none (use the field fp8_x of an operation)"},
      {"--kv-cache-dtype", model, "needs --model, found none (use --cache for an operation)"},
      {"--speculative-config", model, "needs --model, found none"},
      {"--max-model-len", model, "needs --model, found none"},
      {"--device", op || model, "needs an operation or --model, found none"},
      {"--force", op || model, "needs an operation or --model, found none"},
      {"--batch-invariant", op || model, "needs an operation or --model, found none"},
      {"--sweep", op || model, "needs an operation or --model, found none"},
      {"--contract", op, "needs an operation, found none"},
      {"--tokens", op || model, "needs --model, found none"},
      {"--device", !flags.contract, "cannot be combined with --contract"},
      {"--sweep", !flags.contract, "cannot be combined with --contract"},
      {"--batch-invariant", !flags.contract, "cannot be combined with --contract"},
      {"--speculative-config", !sweep, "cannot be combined with --sweep"},
      {"--tokens", !(op && sweep), "cannot be combined with --sweep tokens"},
      {"--tokens-max", sweep, "needs --sweep, found none"}};
  for (const Use& use : uses) {
    const CLI::Option* option = app.get_option_no_throw(use.flag);
    if (!use.useful && option != nullptr && option->count() > 0)
      return invalid(std::string(use.flag) + ": " + use.why);
  }
  return {};
}

int run_explain(const CLI::App& app, ExplainFlags& flags) {
  ExplainOptions& o = flags.options;
  if (!flags.model.empty())  // the value of an unknown flag is read as an operation
    if (const Status status = unknown_flag(app); !status.ok()) return wrong_use(status.message);
  if (!o.op.empty())
    if (const auto known = make_problem(o.op); !known.ok()) return wrong_use(known.status().message);
  if (const Status status = unknown_flag(app); !status.ok())
    return wrong_use(o.op.empty() ? status.message + " (name an operation to set its fields)"
                                  : status.message);
  for (const auto& [name, value, option] : flags.typed) {
    if (option->count() == 0) continue;
    // For a flag without a value, CLI11 returns "true".
    o.fields.emplace_back(name, value == "true" ? "1" : value == "false" ? "0" : value);
  }
  o.format = flags.json ? Format::kJson : Format::kText;
  if (!flags.sweep.empty()) o.show = Show::kSweep;
  if (flags.contract) o.show = Show::kContract;
  if (!flags.model.empty()) o.model = flags.model;
  if (o.model && !o.op.empty()) return wrong_use("explain: wanted an operation or --model, found both");
  if (const Status status = check_uses(app, flags); !status.ok()) return wrong_use(status.message);
  if (!flags.speculative_config.empty()) {
    auto speculation = read_speculative_config(flags.speculative_config);
    if (!speculation.ok()) return wrong_use(speculation.status().message);
    o.speculation = std::move(speculation).value();
  }
  return explain(o);
}

}  // namespace

Command add_explain(CLI::App& root, const std::vector<std::string>& words) {
  CLI::App* app = root.add_subcommand("explain", "show which kernel would run, and why the others would not");
  const auto flags = std::make_shared<ExplainFlags>();
  app->allow_extras();
  app->add_option("op", flags->options.op, "an operation; default: list all operations");
  app->add_option("--device", flags->options.device,
                  "a device of `sluice devices`, or cpu or cuda of this machine; default: the CPU, or with "
                  "--model a Hopper GPU if present");
  app->add_option(
      "--force", flags->options.policy.force,
      "allow only this kernel: NAME or NAME:CONFIG; at most one per operation, separated by commas");
  app->add_flag("--batch-invariant", flags->options.policy.batch_invariant,
                "allow only batch-invariant kernels");
  app->add_option("--sweep", flags->sweep, "print the kernel for each token count")
      ->check(CLI::IsMember({"tokens"}));
  app->add_option("--tokens-max", flags->options.tokens_max, "last token count of the sweep")
      ->capture_default_str()
      ->check(integer_between(0, kSweepTokensMax));
  app->add_flag("--json", flags->json, "print JSON");
  app->add_flag("--contract", flags->contract, "print the operation's fields and tensors");
  app->add_option("--model", flags->model,
                  "explain everything that this model runs: a directory, or the name of a known MoE layer")
      ->check(some_text());
  if (const auto problem = named_op(words)) {
    add_fields(app, *problem, flags.get());
  } else {
    app->add_option("--tokens", flags->options.tokens, "with --model: tokens per step")
        ->capture_default_str()
        ->check(integer_between(1, kStepTokensMax));
    add_moe_backend(app, &flags->options.moe_backend, "With --model");
    add_moe_activations(app, &flags->options.fp8_activations, "With --model");
    app->add_option("--kv-cache-dtype", flags->options.kv_cache_dtype,
                    "with --model: type of the KV cache: auto, bfloat16, fp8, fp8_e4m3")
        ->capture_default_str();
    app->add_option(
           "--speculative-config", flags->speculative_config,
           "with --model: the best number of drafts, for several numbers of sequences and acceptance rates; "
           "JSON as for `sluice serve`")
        ->check(some_text());
    app->add_option("--max-model-len", flags->options.max_model_len,
                    "with --model: maximum tokens per sequence; 0: the model's context, at most 4096")
        ->check(integer_between(0, INT32_MAX));
  }
  return {app, [app, flags] { return run_explain(*app, *flags); }};
}

}  // namespace sluice::apps
