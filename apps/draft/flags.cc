// The flags of sluice draft.
#include <memory>

#include "apps/common/commands.h"
#include "apps/common/flags.h"
#include "apps/draft/draft.h"
#include "apps/subcommands.h"

namespace sluice::apps {

Command add_draft(CLI::App& root) {
  CLI::App* app =
      root.add_subcommand("draft", "load, check and time a checkpoint's draft (MTP) layer on this machine");
  const auto o = std::make_shared<DraftOptions>();
  const auto json = std::make_shared<bool>(false);
  app->add_option("model,--model", o->model, "a Hugging Face model directory")->check(some_text());
  app->add_option("--layer", o->layer, "index among the model's draft layers")
      ->capture_default_str()
      ->check(integer_between(0, INT32_MAX));
  add_counts(app, "--tokens", &o->tokens, 1, 1024,
             "batch sizes to time, one token per sequence, separated by commas");
  app->add_option("--context", o->context, "previous positions of each token")
      ->capture_default_str()
      ->check(integer_between(0, (1 << 20) - 1));
  app->add_option("--dtype", o->dtype, "type of activations: auto, bfloat16, float32")->capture_default_str();
  app->add_option("--experts", o->experts, "device of the main model's MoE layers: cuda; default: the CPU")
      ->check(CLI::IsMember({"cuda"}));
  app->add_option("--router-dtype", o->router_dtype,
                  "type of the main model's router scores: float32, bfloat16")
      ->capture_default_str();
  app->add_option("--speculative-moe-backend,--speculative-moe-runner-backend", o->speculative_moe_backend,
                  "device of the draft's MoE layer: cpu, cuda; default: the main model's");
  app->add_option("--speculative-router-dtype", o->speculative_router_dtype,
                  "type of the draft's router scores; default: the main model's");
  app->add_option("--threads", o->threads, "CPU threads; 0: one per processor")
      ->capture_default_str()
      ->check(integer_between(0, kThreadsMax));
  app->add_option("--seed", o->seed, "random seed of hidden states and tokens")
      ->capture_default_str()
      ->check(seed_number());
  app->add_flag("--json", *json, "print JSON");
  app->allow_extras();
  return {app, [app, o, json] {
            if (const Status status = unknown_flag(*app); !status.ok()) return wrong_use(status.message);
            return draft(*o, *json ? Format::kJson : Format::kText);
          }};
}

}  // namespace sluice::apps
