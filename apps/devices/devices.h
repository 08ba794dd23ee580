// sluice devices and sluice collect-env: information about this machine.
#pragma once
#include "apps/common/commands.h"

namespace sluice::apps {

int devices(Format format);
int collect_env();

}  // namespace sluice::apps
