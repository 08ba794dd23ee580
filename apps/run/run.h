// sluice run: asks a model, once or in a conversation.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/common/chat.h"
#include "apps/common/commands.h"

namespace sluice::apps {

enum class Reasoning : uint8_t {
  kOnTerminal,  // shown when standard error is one
  kShow,
  kHide,
};

struct RunOptions {
  ModelFlags model;
  ChatFlags chat;
  RequestSampling sampling;
  std::vector<std::string> stop;           // text for the user ends before any of them; none is empty
  std::optional<std::string> prompt;       // "-": all of standard input
  std::optional<std::string> prompt_file;  // likewise; neither: a conversation on standard input
  std::optional<std::string> json_schema;  // that answers match: its text, or a file with it
  Reasoning reasoning = Reasoning::kOnTerminal;
  Format format = Format::kText;
};
int run_model(const RunOptions& options);

}  // namespace sluice::apps
