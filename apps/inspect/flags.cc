// The flags of sluice inspect.
#include <memory>

#include "apps/common/commands.h"
#include "apps/common/flags.h"
#include "apps/inspect/inspect.h"
#include "apps/subcommands.h"

namespace sluice::apps {

Command add_inspect(CLI::App& root) {
  CLI::App* app =
      root.add_subcommand("inspect", "list a checkpoint's tensors and how Sluice uses each of them");
  const auto model = std::make_shared<std::string>();
  const auto json = std::make_shared<bool>(false);
  app->add_option("model,--model", *model,
                  "a directory or a .safetensors file; default: the model that ships with Sluice")
      ->check(some_text());
  app->add_flag("--json", *json, "print JSON");
  app->allow_extras();
  return {app, [app, model, json] {
            if (const Status status = unknown_flag(*app); !status.ok()) return wrong_use(status.message);
            return inspect_command(*model, *json ? Format::kJson : Format::kText);
          }};
}

}  // namespace sluice::apps
