// sluice run: answers one prompt, or chats interactively.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/common/chat.h"
#include "apps/common/commands.h"

namespace sluice::apps {

enum class Reasoning : uint8_t {
  kOnTerminal,  // shown if standard error is a terminal
  kShow,
  kHide,
};

struct RunOptions {
  ModelFlags model;
  ChatFlags chat;
  SamplingParams sampling;
  std::vector<std::string> stop;      // the text for the user ends before the first of these; each non-empty
  std::optional<std::string> prompt;  // "-": all of standard input
  std::optional<std::string> prompt_file;  // file with the prompt; neither: chat on standard input
  std::optional<std::string> json_schema;  // answers must match it: a schema, or a file with one
  Reasoning reasoning = Reasoning::kOnTerminal;
  Format format = Format::kText;
};
int run_model(const RunOptions& options);

}  // namespace sluice::apps
