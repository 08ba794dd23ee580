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
  // non-empty strings; the text for the user ends before the first that occurs
  std::vector<std::string> stop;
  std::optional<std::string> prompt;       // "-": the prompt is all of standard input
  std::optional<std::string> prompt_file;  // a file with the prompt. Without prompt and prompt_file: chat
  std::optional<std::string> json_schema;  // a schema that answers must match, or a file with the schema
  Reasoning reasoning = Reasoning::kOnTerminal;
  Format format = Format::kText;
};
int run_model(const RunOptions& options);

}  // namespace sluice::apps
