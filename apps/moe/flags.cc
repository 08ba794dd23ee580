// The flags of sluice moe.
#include <memory>

#include "apps/common/commands.h"
#include "apps/common/flags.h"
#include "apps/moe/moe_digest.h"
#include "apps/moe/moe_layer.h"
#include "apps/subcommands.h"

namespace sluice::apps {

Command add_moe(CLI::App& root) {
  CLI::App* app = root.add_subcommand("moe", "check and time one MoE layer of a known model on this machine");
  struct Flags {
    MoeLayerOptions options;
    std::string device = "cpu";
    bool json = false, wants_digest = false;
    MoeDigestOptions digest;
  };
  const auto flags = std::make_shared<Flags>();
  MoeLayerOptions* options = &flags->options;
  app->add_option("model", options->model,
                  "one of " + known_moe_names() +
                      "; or fields such as \"hidden=2880 experts=128 top_k=4\"; or a name, then fields that "
                      "differ")
      ->capture_default_str();
  app->add_option("--device", flags->device, "cpu, or cuda: this machine's GPU")
      ->capture_default_str()
      ->check(CLI::IsMember({"cpu", "cuda"}));
  add_moe_backend(app, &options->experts);
  add_counts(app, "--tokens", &options->tokens, 1, kStepTokensMax,
             "token counts to time, separated by commas");
  app->add_option("--threads", options->threads, "CPU threads; 0: one per processor")
      ->capture_default_str()
      ->check(integer_between(0, kThreadsMax));
  app->add_option("--seed", options->seed, "random seed of weights and activations")
      ->capture_default_str()
      ->check(seed_number());
  app->add_flag("--json", flags->json, "print JSON");
  CLI::Option* digests = app->add_flag(
      "--digest", flags->wants_digest,
      "print hashes of the output of a gpt-oss layer with reproducible weights, as examples/layer.c does");
  app->add_option("--ep-rank", flags->digest.slice.ep_rank, "with --digest: expert-parallel rank")
      ->needs(digests);
  app->add_option("--ep-size", flags->digest.slice.ep_size, "with --digest: number of expert-parallel ranks")
      ->needs(digests);
  app->allow_extras();
  return {app, [app, flags] {
            if (const Status status = unknown_flag(*app); !status.ok()) return wrong_use(status.message);
            MoeLayerOptions& o = flags->options;
            if (flags->wants_digest) {
              flags->digest.model = o.model, flags->digest.tokens = o.tokens;
              flags->digest.threads = o.threads;
              return moe_digest(flags->digest, flags->device);
            }
            if (flags->device == "cuda") o.backend = Backend::kCuda;
            return moe(o, flags->json ? Format::kJson : Format::kText);
          }};
}

}  // namespace sluice::apps
