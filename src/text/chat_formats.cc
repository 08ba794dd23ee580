#include <algorithm>
#include <utility>

#include "base/fields.h"
#include "text/chat_format_entries.h"

namespace sluice {
namespace {

const ChatFormatEntry* const kFormats[] = {
    &kHarmonyFormat,    &kQwen3Format,      &kQwen3ThinkingFormat, &kQwen3InstructFormat,
    &kDeepSeekV3Format, &kDeepSeekR1Format, &kDeepSeekV31Format,
};

std::string all_names() {
  std::string out;
  for (const ChatFormatEntry* f : kFormats) out += (out.empty() ? "" : ", ") + std::string(f->name);
  return out;
}

// Stands for an unknown chat format. Only completions work.
class NoChat final : public ChatFormat {
 public:
  NoChat(Tokenizer tokenizer, std::optional<int32_t> end, Status why)
      : tokenizer_(std::move(tokenizer)), end_(end), why_(std::move(why)) {}
  std::string_view name() const override { return "none"; }
  const Tokenizer& tokenizer() const override { return tokenizer_; }
  ChatAbilities abilities() const override { return {}; }
  Status usable() const override { return why_; }
  Result<std::string> functions_text(const std::vector<FunctionTool>&) const override { return why_; }
  Result<std::vector<int32_t>> prompt(const Conversation&) const override { return why_; }
  Result<std::vector<int32_t>> call_start(const std::string&, std::optional<bool>) const override {
    return why_;
  }
  void forget_old_reasoning(std::vector<Message>*) const override {}
  std::unique_ptr<AnswerParser> parser(const AnswerContext&) const override { return nullptr; }
  Result<std::unique_ptr<ChatGate>> gate(const AnswerEnds&, std::optional<bool>) const override {
    return why_;
  }
  std::vector<int32_t> stop_tokens() const override { return {}; }
  std::optional<int32_t> end_token() const override { return end_; }

 private:
  Tokenizer tokenizer_;
  std::optional<int32_t> end_;
  Status why_;
};

ChatFormatPointer no_chat(const ChatFiles& files) {
  const Status why =
      unsupported("chat template: wanted the template of a known format (" + all_names() + "), found " +
                  (files.chat_template ? "another template" : "none") + "; use " + files.option +
                  " if the model was trained on one of these formats");
  const auto is_special = [&](int32_t id) { return files.tokenizer.is_special(id); };
  const auto end = std::find_if(files.stop_tokens.begin(), files.stop_tokens.end(), is_special);
  return std::make_shared<const NoChat>(
      files.tokenizer, end == files.stop_tokens.end() ? std::nullopt : std::optional(*end), why);
}

}  // namespace

std::vector<std::string> chat_format_names() {
  std::vector<std::string> out;
  for (const ChatFormatEntry* f : kFormats) out.emplace_back(f->name);
  return out;
}

ParserNames parser_names(std::string_view format) {
  for (const ChatFormatEntry* f : kFormats)
    if (format == f->name) return f->parsers;
  return {};
}

Result<ChatFormatPointer> open_chat_format(const std::string& name, const ChatFiles& files) {
  for (const ChatFormatEntry* f : kFormats)
    if (name == f->name || (name == "auto" && f->fits(files))) return f->open(files);
  if (name == "auto") return no_chat(files);
  std::vector<std::string> known = chat_format_names();
  known.insert(known.begin(), "auto");
  return unknown_name("chat format", name, known);
}

}  // namespace sluice
