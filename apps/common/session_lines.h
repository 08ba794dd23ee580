// The lines that describe an open session: the model, the kernel of its experts, its memory and its other kernels.
#pragma once
#include <string>
#include <vector>

#include "apps/common/session.h"
#include "server/server_log.h"

namespace sluice::apps {

struct SessionLine {
  std::string text;
  LogFields fields;  // numbers and names of `text`; "kind" is model, experts, memory, drafts or note
};
std::vector<SessionLine> lines_about(const Session& session);

}  // namespace sluice::apps
