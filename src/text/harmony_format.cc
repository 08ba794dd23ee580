// Harmony's implementation of ChatFormat.
#include <algorithm>
#include <utility>

#include "text/answer_gate.h"
#include "text/chat_format_entries.h"
#include "text/harmony.h"
#include "text/harmony_parser.h"
#include "text/harmony_tools.h"

namespace sluice {

// Presents an AnswerGate as a ChatGate.
class HarmonyGate final : public ChatGate {
 public:
  // nullopt for `gate`: the prompt ends where the arguments of a call begin.
  HarmonyGate(const Harmony& harmony, std::optional<AnswerGate> gate)
      : gate_(std::move(gate)), end_(harmony.end_), return_(harmony.return_), call_(harmony.call_) {
    arrive();
  }
  std::unique_ptr<ChatGate> copy() const override { return std::make_unique<HarmonyGate>(*this); }
  void accept(int32_t id) override {
    if (!gate_) return;
    gate_->accept(id);
    arrive();
  }
  void accept_content() override {}

 private:
  void arrive() {
    using Place = AnswerGate::Place;
    const Place place = gate_ ? gate_->place() : Place::kCall;
    switch (place) {
      case Place::kHeader:
        step_ = {.frame = gate_->next()};
        break;
      case Place::kAnalysis:
        step_ = {.content = Content::kFree, .ends = {end_}};
        break;
      case Place::kFinal:
        step_ = {.content = Content::kText, .ends = {return_}};
        break;
      case Place::kCall:
        step_ = {.content = Content::kArguments, .function = gate_ ? gate_->function() : 0, .ends = {call_}};
        break;
    }
  }
  std::optional<AnswerGate> gate_;
  int32_t end_, return_, call_;
};

Result<std::string> Harmony::functions_text(const std::vector<FunctionTool>& functions) const {
  return functions_section(functions);
}

Result<std::vector<int32_t>> Harmony::call_start(const std::string& function, std::optional<bool>) const {
  std::vector<int32_t> ids;
  SLUICE_TRY(tokenizer_.encode(call_header(function), Specials::kParse, &ids));
  return ids;
}

void Harmony::forget_old_reasoning(std::vector<Message>* messages) const {
  const auto last_final = std::find_if(messages->rbegin(), messages->rend(), is_final_text).base();
  const auto is_old = [](const Message& m) { return m.role == ChatRole::kAssistant && is_reasoning(m); };
  messages->erase(std::remove_if(messages->begin(), last_final, is_old), last_final);
}

std::unique_ptr<AnswerParser> Harmony::parser(const AnswerContext& context) const {
  using Begin = HarmonyParser::Begin;
  return std::make_unique<HarmonyParser>(*this, context.continues ? Begin::kFinal : Begin::kAssistant);
}

Result<std::unique_ptr<ChatGate>> Harmony::gate(const AnswerEnds& ends, std::optional<bool>) const {
  if (ends.begun) return std::unique_ptr<ChatGate>(std::make_unique<HarmonyGate>(*this, std::nullopt));
  auto gate = AnswerGate::from(*this, ends);
  if (!gate.ok()) return gate.status();
  return std::unique_ptr<ChatGate>(std::make_unique<HarmonyGate>(*this, std::move(gate).value()));
}

namespace {

// Fine-tuned models keep the tokenizer, but may have been trained on another format, which their template shows.
bool is_harmony(const ChatFiles& files) {
  const auto shows = [&](const char* token) { return files.chat_template->find(token) != std::string::npos; };
  const bool fits = !files.chat_template || (shows("<|start|>") && shows("<|message|>"));
  return fits && Harmony::from(files.tokenizer).ok();
}

Result<ChatFormatPointer> open_harmony(const ChatFiles& files) {
  auto harmony = Harmony::from(files.tokenizer);
  if (!harmony.ok()) return harmony.status();
  return ChatFormatPointer(std::make_shared<const Harmony>(std::move(harmony).value()));
}

}  // namespace

// Only harmony's models, and models tuned from them, have tokenizers with all of harmony's special tokens.
const ChatFormatEntry kHarmonyFormat = {.name = "harmony",
                                        .fits = is_harmony,
                                        .open = open_harmony,
                                        .parsers = {.reasoning = "openai_gptoss openai gpt-oss gpt_oss",
                                                    .tools = "openai openai_gptoss gpt-oss gpt_oss"}};

}  // namespace sluice
