// The flags of sluice draft.
#include <memory>

#include "apps/common/commands.h"
#include "apps/common/flags.h"
#include "apps/draft/draft.h"
#include "apps/subcommands.h"

namespace sluice::apps {

Command add_draft(CLI::App& root) {
  CLI::App* app = root.add_subcommand(
      "draft", "the draft (MTP) layer of a checkpoint on this machine, checked and timed");
  const auto o = std::make_shared<DraftOptions>();
  const auto json = std::make_shared<bool>(false);
  app->add_option("model,--model", o->model, "a Hugging Face model directory");
  app->add_option("--layer", o->layer, "which of the model's draft layers")
      ->capture_default_str()
      ->check(integer_between(0, INT32_MAX));
  add_counts(app, "--tokens", &o->tokens, 1, 1024,
             "sequences of a step to time, one token each: counts, separated by commas");
  app->add_option("--context", o->context, "positions before each token")
      ->capture_default_str()
      ->check(integer_between(0, (1 << 20) - 1));
  app->add_option("--dtype", o->dtype, "of activations: auto, bfloat16, float32")->capture_default_str();
  app->add_option("--experts", o->experts,
                  "device that the main model's MoE layers run on: cuda; none: the CPU")
      ->check(CLI::IsMember({"cuda"}));
  app->add_option("--router-dtype", o->router_dtype, "of the main model's router scores: float32, bfloat16")
      ->capture_default_str();
  app->add_option("--speculative-moe-backend,--speculative-moe-runner-backend", o->speculative_moe_backend,
                  "where the draft's MoE layer runs: cpu, cuda; none: where the main model's do");
  app->add_option("--speculative-router-dtype", o->speculative_router_dtype,
                  "of the draft's router scores; none: as the main model's");
  app->add_option("--threads", o->threads, "threads of the CPU; 0: one for each processor")
      ->capture_default_str()
      ->check(integer_between(0, kThreadsMax));
  app->add_option("--seed", o->seed, "of hidden states and tokens")
      ->capture_default_str()
      ->check(seed_number());
  app->add_flag("--json", *json, "the answer as JSON");
  app->allow_extras();
  return {app, [app, o, json] {
            if (const Status status = unknown_flag(*app); !status.ok()) return wrong_use(status.message);
            return draft(*o, *json ? Format::kJson : Format::kText);
          }};
}

}  // namespace sluice::apps
