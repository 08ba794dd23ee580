#include "server/structured.h"

#include <algorithm>
#include <utility>

namespace sluice {
namespace {

using Bits = std::vector<uint32_t>;
using Content = ChatGate::Content;

void set(std::span<uint32_t> bits, int32_t id) { bits[static_cast<size_t>(id) / 32] |= 1u << (id % 32); }
// Clears a bit and returns whether it was set.
bool take_out(std::span<uint32_t> bits, int32_t id) {
  const uint32_t bit = 1u << (id % 32);
  return (std::exchange(bits[static_cast<size_t>(id) / 32], bits[static_cast<size_t>(id) / 32] & ~bit) &
          bit) != 0;
}

class TextFilter final : public TokenFilter {
 public:
  explicit TextFilter(const Grammar& grammar) : matcher_(grammar) {}
  Status allowed(std::span<uint32_t> bits, const std::stop_token& stop) override {
    return matcher_.allowed(bits, stop);
  }
  Status accept(int32_t id, const std::stop_token& stop) override { return matcher_.accept(id, stop); }
  std::unique_ptr<TokenFilter> copy() const override { return std::make_unique<TextFilter>(*this); }

 private:
  GrammarMatcher matcher_;
};

// Shared by all filters of one request.
struct ChatPlan {
  std::unique_ptr<const ChatGate> gate;
  std::optional<Grammar> text;                    // of the final message; nullopt: unconstrained
  std::vector<std::optional<Grammar>> arguments;  // by function; nullopt: unconstrained
  std::shared_ptr<const Bits> words;              // tokens allowed in unconstrained content
  std::shared_ptr<const Bits> frame;              // tokens of the chat format, which are never content
  // the token by which a grammar says that its text is complete
  int32_t end;
  bool is_frame(int32_t id) const { return ((*frame)[static_cast<size_t>(id) / 32] >> (id % 32) & 1u) != 0; }
};

bool has(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

// Tracks the position in the chat format (ChatGate) and applies the grammar of the content at that position.
class ChatFilter final : public TokenFilter {
 public:
  explicit ChatFilter(std::shared_ptr<const ChatPlan> plan)
      : plan_(std::move(plan)), gate_(plan_->gate->copy()) {
    arrive();
  }

  ChatFilter(const ChatFilter& o)
      : plan_(o.plan_),
        gate_(o.gate_->copy()),
        at_(o.at_),
        function_(o.function_),
        content_(o.content_ ? o.content_->copy() : nullptr) {}
  ChatFilter& operator=(const ChatFilter&) = delete;
  std::unique_ptr<TokenFilter> copy() const override { return std::make_unique<ChatFilter>(*this); }

  Status allowed(std::span<uint32_t> bits, const std::stop_token& stop) override {
    SLUICE_TRY(allowed_content(bits, stop));
    for (const int32_t id : gate_->step().frame) set(bits, id);
    return {};
  }

  Status accept(int32_t id, const std::stop_token& stop) override {
    if (!has(gate_->step().frame, id)) {
      bool ends = has(gate_->step().ends, id);
      // A token that can end the content but is not a control token may also be part of the content, unless the content is complete.
      if (ends && content_ && !plan_->is_frame(id)) SLUICE_TRY(is_complete(stop, &ends));
      if (content_) SLUICE_TRY(content_->accept(ends ? plan_->end : id, stop));
      if (!ends) return gate_->accept_content(), Status{};
    }
    gate_->accept(id);
    arrive();
    return {};
  }

 private:
  Status allowed_content(std::span<uint32_t> bits, const std::stop_token& stop) {
    const ChatGate::Step& step = gate_->step();
    bool ends = true;
    if (step.content == Content::kNone) {
      std::fill(bits.begin(), bits.end(), 0u);
      ends = false;
    } else if (content_) {
      SLUICE_TRY(content_->allowed(bits, stop));
      ends = take_out(bits, plan_->end);
      for (size_t i = 0; i < bits.size(); ++i) bits[i] &= ~(*plan_->frame)[i];
    } else {
      std::copy(plan_->words->begin(), plan_->words->end(), bits.begin());
    }
    if (ends)
      for (const int32_t id : step.ends) set(bits, id);
    return {};
  }
  Status is_complete(const std::stop_token& stop, bool* complete) {
    Bits bits(plan_->words->size());
    SLUICE_TRY(content_->allowed(bits, stop));
    *complete = take_out(bits, plan_->end);
    return {};
  }
  void arrive() {
    const ChatGate::Step& step = gate_->step();
    if (step.content == at_ && step.function == function_) return;
    at_ = step.content;
    function_ = step.function;
    content_.reset();
    const std::optional<Grammar>* grammar = at_ == Content::kArguments ? &plan_->arguments[function_]
                                            : at_ == Content::kText    ? &plan_->text
                                                                       : nullptr;
    if (grammar && *grammar) content_ = std::make_unique<TextFilter>(**grammar);
  }
  std::shared_ptr<const ChatPlan> plan_;
  std::unique_ptr<ChatGate> gate_;
  Content at_ = Content::kNone;
  size_t function_ = 0;
  std::unique_ptr<TokenFilter> content_;  // null: the content is unconstrained
};

}  // namespace

StructuredOutput::StructuredOutput(const ChatFormat& format, int64_t vocab) : format_(format) {
  const Tokenizer& tokenizer = format.tokenizer();
  if (const auto end = format.end_token())
    compiler_ = std::make_unique<GrammarCompiler>(tokenizer, vocab, *end);
  Bits words(static_cast<size_t>((vocab + 31) / 32)), frame(words.size());
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (format.is_frame(id))
      set(frame, id);
    else if (!tokenizer.piece(id).empty())
      set(words, id);
  }
  words_ = std::make_shared<const Bits>(std::move(words));
  frame_ = std::make_shared<const Bits>(std::move(frame));
}

Result<Grammar, ApiError> StructuredOutput::compile(const GrammarSource& source, const std::string& field,
                                                    const std::stop_token& stop) const {
  if (!compiler_)
    return ApiError{
        .message = field + ": wanted null, since the model's eos_token_id has no special token to end a text",
        .param = field};
  auto grammar = compiler_->compile(source, stop);
  if (!grammar.ok()) return ApiError{.message = field + ": " + grammar.status().message, .param = field};
  return std::move(grammar).value();
}

// For a function that is not strict, an unsupported schema is replaced by a grammar of any object, and if that cannot be compiled either,
// the arguments are unconstrained.
Result<std::optional<Grammar>, ApiError> StructuredOutput::arguments_of(const FunctionTool& function,
                                                                        size_t number,
                                                                        const std::stop_token& stop) const {
  std::vector<GrammarSource> sources;
  if (!function.arguments.empty())
    sources.push_back({.kind = GrammarKind::kJsonSchema, .text = function.arguments});
  if (sources.empty() || !function.strict) sources.push_back(any_json_object());
  for (const GrammarSource& source : sources) {
    auto grammar = compile(source, "tools[" + std::to_string(number) + "]", stop);
    if (grammar.ok()) return std::optional<Grammar>(std::move(grammar).value());
    if (function.strict) return grammar.error();
  }
  return std::optional<Grammar>();
}

Result<MakeFilter, ApiError> StructuredOutput::of_chat(const ApiRequest& request, std::optional<Grammar> text,
                                                       const std::stop_token& stop) const {
  const ApiTools& tools = request.tools;
  std::vector<std::optional<Grammar>> arguments;
  AnswerEnds ends{.final_message = tools.choice != ApiTools::Choice::kRequired,
                  .held_text = text.has_value(),
                  .many_calls = tools.parallel,
                  .begun = !tools.named.empty(),
                  .continues = request.end == PromptEnd::kOpenMessage};
  for (size_t i = 0; tools.offered() && i < tools.functions.size(); ++i) {
    const FunctionTool& f = tools.functions[i];
    if (!tools.named.empty() && f.name != tools.named) continue;
    auto grammar = arguments_of(f, i, stop);
    if (!grammar.ok()) return grammar.error();
    arguments.push_back(std::move(grammar).value());
    ends.functions.push_back(f.name);
    ends.free_arguments.push_back(!arguments.back());
  }
  if (ends.begun && !arguments.front()) return MakeFilter();
  auto gate = format_.gate(ends, request.thinking);
  if (!gate.ok()) return ApiError{.message = "tools: " + gate.status().message, .param = "tools"};
  const auto plan = std::make_shared<const ChatPlan>(ChatPlan{.gate = std::move(gate).value(),
                                                              .text = std::move(text),
                                                              .arguments = std::move(arguments),
                                                              .words = words_,
                                                              .frame = frame_,
                                                              .end = format_.end_token().value_or(-1)});
  return MakeFilter([plan] { return std::make_shared<ChatFilter>(plan); });
}

bool StructuredOutput::filters_of(const ApiRequest& request) {
  const ApiTools& tools = request.tools;
  const auto strict = [](const FunctionTool& f) { return f.strict; };
  return request.structure || tools.choice == ApiTools::Choice::kRequired || !tools.named.empty() ||
         (tools.offered() &&
          (!tools.parallel || std::any_of(tools.functions.begin(), tools.functions.end(), strict)));
}

Result<MakeFilter, ApiError> StructuredOutput::filters(const ApiRequest& request,
                                                       const std::stop_token& stop) const {
  if (filters_of(request) && request.sampling.ignore_eos)
    return ApiError{.message =
                        "ignore_eos: wanted false or null if the answer must match a structure, which "
                        "determines its end, found true",
                    .param = "ignore_eos"};
  std::optional<Grammar> text;
  if (request.structure) {
    auto grammar = compile(*request.structure, request.structure_field, stop);
    if (!grammar.ok()) return grammar.error();
    text = std::move(grammar).value();
  }
  if (!filters_of(request)) return MakeFilter();
  if (request.kind != ApiKind::kCompletion) return of_chat(request, std::move(text), stop);
  return MakeFilter([grammar = *text] { return std::make_shared<TextFilter>(grammar); });
}

}  // namespace sluice
