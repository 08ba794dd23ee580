// The flags of sluice devices and sluice collect-env.
#include <memory>

#include "apps/common/commands.h"
#include "apps/common/flags.h"
#include "apps/devices/devices.h"
#include "apps/subcommands.h"

namespace sluice::apps {

Command add_devices(CLI::App& root) {
  CLI::App* app = root.add_subcommand("devices", "show this machine and the devices that explain knows");
  const auto json = std::make_shared<bool>(false);
  app->add_flag("--json", *json, "print JSON");
  return {app, [json] { return devices(*json ? Format::kJson : Format::kText); }};
}

Command add_collect_env(CLI::App& root) {
  CLI::App* app = root.add_subcommand("collect-env", "print system information for a bug report");
  return {app, [] { return collect_env(); }};
}

}  // namespace sluice::apps
