// What a session says of itself once it is open: the model, the kernel of its experts, its memory and kernels.
#pragma once
#include <string>
#include <vector>

#include "apps/common/session.h"
#include "server/server_log.h"

namespace sluice::apps {

struct SessionLine {
  std::string text;
  LogFields fields;  // what of it is a number or a name by itself; "kind" is model, experts or memory
};
std::vector<SessionLine> lines_about(const Session& session);

}  // namespace sluice::apps
