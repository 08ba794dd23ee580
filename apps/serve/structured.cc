#include "apps/serve/structured.h"

#include <algorithm>
#include <utility>

namespace sluice::apps {
namespace {

using Bits = std::vector<uint32_t>;
using Place = AnswerGate::Place;

void set(std::span<uint32_t> bits, int32_t id) { bits[static_cast<size_t>(id) / 32] |= 1u << (id % 32); }
// Whether it was there.
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

 private:
  GrammarMatcher matcher_;
};

// Arguments end with <|call|>, for which grammars have <|return|>.
class ArgumentsFilter final : public TokenFilter {
 public:
  ArgumentsFilter(const Grammar& grammar, int32_t grammars_end, int32_t call)
      : text_(grammar), grammars_end_(grammars_end), call_(call) {}
  Status allowed(std::span<uint32_t> bits, const std::stop_token& stop) override {
    SLUICE_TRY(text_.allowed(bits, stop));
    if (take_out(bits, grammars_end_)) set(bits, call_);
    return {};
  }
  Status accept(int32_t id, const std::stop_token& stop) override {
    return text_.accept(id == call_ ? grammars_end_ : id, stop);
  }

 private:
  TextFilter text_;
  int32_t grammars_end_, call_;
};

// What all filters of one request share.
struct ChatPlan {
  AnswerGate gate;
  std::optional<Grammar> text;                    // of the final message; none: it is free
  std::vector<std::optional<Grammar>> arguments;  // of each function; none: they are free
  std::shared_ptr<const Bits> words;
  int32_t end, grammars_end, call;
};

// Leads through the gate to a message, and holds its content to what it must match.
class ChatFilter final : public TokenFilter {
 public:
  explicit ChatFilter(std::shared_ptr<const ChatPlan> plan) : plan_(std::move(plan)), gate_(plan_->gate) {
    arrive();
  }

  Status allowed(std::span<uint32_t> bits, const std::stop_token& stop) override {
    if (content_) return content_->allowed(bits, stop);
    if (gate_.place() == Place::kHeader) {
      std::fill(bits.begin(), bits.end(), 0u);
      for (const int32_t id : gate_.next()) set(bits, id);
      return {};
    }
    std::copy(plan_->words->begin(), plan_->words->end(), bits.begin());
    set(bits, gate_.place() == Place::kAnalysis ? plan_->end
              : gate_.place() == Place::kCall   ? plan_->call
                                                : plan_->grammars_end);
    return {};
  }
  Status accept(int32_t id, const std::stop_token& stop) override {
    if (content_) return content_->accept(id, stop);
    gate_.accept(id);
    arrive();
    return {};
  }

 private:
  void arrive() {
    if (gate_.place() == Place::kCall && plan_->arguments[gate_.function()])
      content_ = std::make_unique<ArgumentsFilter>(*plan_->arguments[gate_.function()], plan_->grammars_end,
                                                   plan_->call);
    else if (gate_.place() == Place::kFinal && plan_->text)
      content_ = std::make_unique<TextFilter>(*plan_->text);
  }
  std::shared_ptr<const ChatPlan> plan_;
  AnswerGate gate_;
  std::unique_ptr<TokenFilter> content_;  // once the content has begun
};

}  // namespace

StructuredOutput::StructuredOutput(const Harmony& harmony, int64_t vocab)
    : harmony_(harmony),
      end_(*harmony.tokenizer().id_of("<|end|>")),
      return_(*harmony.tokenizer().id_of("<|return|>")),
      call_(*harmony.tokenizer().id_of("<|call|>")) {
  const Tokenizer& tokenizer = harmony.tokenizer();
  compiler_ = std::make_unique<GrammarCompiler>(tokenizer, vocab, return_);
  Bits words(static_cast<size_t>((vocab + 31) / 32));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    if (!tokenizer.is_special(id) && !tokenizer.piece(id).empty()) set(words, id);
  words_ = std::make_shared<const Bits>(std::move(words));
}

ApiResult<Grammar> StructuredOutput::compile(const GrammarSource& source, const std::string& field,
                                             const std::stop_token& stop) const {
  auto grammar = compiler_->compile(source, stop);
  if (!grammar.ok()) return ApiError{.message = field + ": " + grammar.status().message, .param = field};
  return std::move(grammar).value();
}

// Of a function that is not strict they match its schema if that can be kept, or are an object, or free where no grammar can be had.
ApiResult<std::optional<Grammar>> StructuredOutput::arguments_of(const FunctionTool& function, size_t number,
                                                                 const std::stop_token& stop) const {
  std::vector<GrammarSource> sources;
  if (!function.arguments.empty())
    sources.push_back({.kind = GrammarKind::kJsonSchema, .text = function.arguments});
  if (sources.empty() || !function.strict) sources.push_back(any_json_object());
  for (const GrammarSource& source : sources) {
    auto grammar = compile(source, "tools[" + std::to_string(number) + "]", stop);
    if (auto* good = std::get_if<Grammar>(&grammar)) return std::optional<Grammar>(std::move(*good));
    if (function.strict) return std::get<ApiError>(std::move(grammar));
  }
  return std::optional<Grammar>();
}

ApiResult<MakeFilter> StructuredOutput::of_chat(const ApiRequest& request, std::optional<Grammar> text,
                                                const std::stop_token& stop) const {
  const ApiTools& tools = request.tools;
  std::vector<std::optional<Grammar>> arguments;
  AnswerEnds ends{.final_message = tools.choice != ApiTools::Choice::kRequired, .functions = {}};
  for (size_t i = 0; tools.offered() && i < tools.functions.size(); ++i) {
    const FunctionTool& f = tools.functions[i];
    if (!tools.named.empty() && f.name != tools.named) continue;
    auto grammar = arguments_of(f, i, stop);
    if (const auto* error = std::get_if<ApiError>(&grammar)) return *error;
    arguments.push_back(std::get<std::optional<Grammar>>(std::move(grammar)));
    ends.functions.push_back(f.name);
  }
  if (!tools.named.empty() && !arguments.front()) return MakeFilter();
  if (!tools.named.empty())  // the prompt ends with its header
    return MakeFilter([grammar = *arguments.front(), end = return_, call = call_] {
      return std::make_shared<ArgumentsFilter>(grammar, end, call);
    });
  auto gate = AnswerGate::from(harmony_, ends);
  if (!gate.ok()) return ApiError{.message = "tools: " + gate.status().message, .param = "tools"};
  const auto plan = std::make_shared<const ChatPlan>(ChatPlan{.gate = std::move(gate).value(),
                                                              .text = std::move(text),
                                                              .arguments = std::move(arguments),
                                                              .words = words_,
                                                              .end = end_,
                                                              .grammars_end = return_,
                                                              .call = call_});
  return MakeFilter([plan] { return std::make_shared<ChatFilter>(plan); });
}

ApiResult<MakeFilter> StructuredOutput::filters(const ApiRequest& request,
                                                const std::stop_token& stop) const {
  std::optional<Grammar> text;
  if (request.structure) {
    auto grammar = compile(*request.structure, request.structure_field, stop);
    if (const auto* error = std::get_if<ApiError>(&grammar)) return *error;
    text = std::get<Grammar>(std::move(grammar));
  }
  const ApiTools& tools = request.tools;
  const bool strict = tools.offered() && std::any_of(tools.functions.begin(), tools.functions.end(),
                                                     [](const FunctionTool& f) { return f.strict; });
  const bool must_call = tools.choice == ApiTools::Choice::kRequired || !tools.named.empty();
  if (!text && !strict && !must_call) return MakeFilter();
  if (request.kind != ApiKind::kCompletion) return of_chat(request, std::move(text), stop);
  return MakeFilter([grammar = *text] { return std::make_shared<TextFilter>(grammar); });
}

}  // namespace sluice::apps
