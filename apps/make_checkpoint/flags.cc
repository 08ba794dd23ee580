// The flags of sluice make-checkpoint.
#include <memory>

#include "apps/common/commands.h"
#include "apps/common/flags.h"
#include "apps/make_checkpoint/make_checkpoint.h"
#include "apps/subcommands.h"

namespace sluice::apps {

Command add_make_checkpoint(CLI::App& root) {
  CLI::App* app = root.add_subcommand("make-checkpoint", "write random weights in a model's real layout");
  const auto options = std::make_shared<MakeOptions>();
  app->add_option("directory", options->directory, "output directory, new or empty");
  app->add_option("--like", options->like,
                  "the model: gpt-oss, Qwen3-MoE and DeepSeek V3 complete, other models only their MoE "
                  "layers, in bf16 if "
                  "they ship in "
                  "FP8 or NVFP4")
      ->capture_default_str();
  app->add_option("--layers", options->layers, "number of layers; 0: as many as the model has")
      ->capture_default_str()
      ->check(integer_between(0, 1000));
  app->add_option("--seed", options->seed, "random seed of the weights")
      ->capture_default_str()
      ->check(seed_number());
  std::string forms;
  for (const QuantizationForm& form : quantization_forms())
    forms += (forms.empty() ? "" : ", ") + std::string(form.name);
  app->add_option("--quantization", options->quantization,
                  "the experts' form (" + forms + "); all other weights stay in bf16")
      ->check(some_text());
  add_routing(app, [options](Routing routing) { options->routing = routing; });
  app->add_option("--only", options->only,
                  "write only the tensors whose names contain this text, with the same bytes as in the "
                  "complete checkpoint")
      ->check(some_text());
  app->add_flag(
      "--config-only",
      [options](int64_t count) {
        if (count > 0) options->weights = MakeOptions::Weights::kLeaveOut;
      },
      "write no weights: `--load-format dummy` generates the same weights as seed 0, with its own --routing");
  app->allow_extras();
  return {app, [app, options] {
            if (const Status status = unknown_flag(*app); !status.ok()) return wrong_use(status.message);
            return make_checkpoint_command(*options);
          }};
}

}  // namespace sluice::apps
