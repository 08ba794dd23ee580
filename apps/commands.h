// The subcommands of sluice, one function each. main.cc reads the command line and calls them; errors go to
// stderr as one message.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/bench_model.h"
#include "apps/bench_report.h"
#include "apps/draft.h"
#include "apps/eval.h"
#include "apps/make_checkpoint.h"
#include "apps/moe_digest.h"
#include "apps/moe_layer.h"
#include "dispatch/decide.h"

namespace sluice::apps {

constexpr int kExitOk = 0;
constexpr int kExitNo = 1;        // the question was understood, and the answer is no
constexpr int kExitWrongUse = 2;  // unknown names, bad values, files and devices that fail

enum class Format : uint8_t { kText, kJson };
enum class Show : uint8_t {
  kDecision,  // which kernel is chosen, and why
  kSweep,     // which kernel is chosen for each count of tokens
  kContract,  // fields and tensors
};

struct ExplainOptions {
  std::string op;                                           // empty: lists the operations
  std::vector<std::pair<std::string, std::string>> fields;  // name and value, as they were typed
  // Instead of one operation: all that a model runs for a step of `tokens`. A directory, or a name of known_moe().
  std::optional<std::string> model;
  int64_t tokens = 1, max_model_len = 0;
  std::optional<std::string> device;  // a known device; none: this machine
  Policy policy;
  MoeBackend moe_backend = {};          // of the model's experts
  std::string kv_cache_dtype = "auto";  // of the model's caches, as ModelFlags has it
  int64_t tokens_max = 1024;            // of a sweep
  Show show = Show::kDecision;
  Format format = Format::kText;
};
int explain(const ExplainOptions& options);

enum class Reasoning : uint8_t {
  kOnTerminal,  // shown when standard error is one
  kShow,
  kHide,
};

struct RunOptions {
  ModelFlags model;
  ChatFlags chat;
  SamplingFlags sampling;
  std::optional<std::string> prompt;       // "-": all of standard input
  std::optional<std::string> prompt_file;  // likewise; neither: a conversation on standard input
  std::optional<std::string> json_schema;  // that answers match: its text, or a file with it
  Reasoning reasoning = Reasoning::kOnTerminal;
  Format format = Format::kText;
};
int run_model(const RunOptions& options);
int eval_model(const EvalOptions& options, Format format);
int bench_command(const BenchOptions& options, Format format);
int bench_report_command(const ReportOptions& options);  // prints the names of what it wrote

// kExitNo if tensors are wrong or missing. Empty: the model that ships.
int inspect_command(const std::string& model, Format format);

int make_checkpoint_command(const MakeOptions& options);

int devices(Format format);
int collect_env();
int moe(const MoeLayerOptions& options, Format format);
int moe_digest(MoeDigestOptions options, const std::string& device);
int draft(const DraftOptions& options, Format format);

// Prints "sluice: <message>" to stderr; returns kExitWrongUse.
int wrong_use(std::string_view message);

}  // namespace sluice::apps
