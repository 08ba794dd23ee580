#include "server/answers/answer.h"

#include "server/answers/response_answer.h"
#include "server/answers/text_answer.h"

namespace sluice {
namespace {

OrderedJson model_object(const std::string& name, int64_t created, int64_t max_model_len) {
  return {{"id", name},
          {"object", "model"},
          {"created", created},
          {"owned_by", "sluice"},
          {"max_model_len", max_model_len}};
}

}  // namespace

std::string error_json(const ApiError& e) {
  return dump(
      {{"error",
        {{"message", e.message}, {"type", e.type}, {"param", or_null(e.param)}, {"code", or_null(e.code)}}}});
}

std::string models_json(const std::vector<std::string>& names, int64_t created, int64_t max_model_len) {
  OrderedJson data = OrderedJson::array();
  for (const std::string& name : names) data.push_back(model_object(name, created, max_model_len));
  return dump({{"object", "list"}, {"data", data}});
}

std::string model_json(const std::string& name, int64_t created, int64_t max_model_len) {
  return dump(model_object(name, created, max_model_len));
}

std::string tokenize_json(const std::vector<int32_t>& tokens, int64_t max_model_len) {
  return dump({{"count", tokens.size()}, {"max_model_len", max_model_len}, {"tokens", tokens}});
}

std::string detokenize_json(const std::string& text) { return dump({{"prompt", text}}); }
std::string deleted_json(const std::string& id) {
  return dump({{"id", id}, {"object", "response"}, {"deleted", true}});
}
std::string version_json() { return dump({{"version", SLUICE_VERSION}}); }
std::string status_json(const std::string& status) { return dump({{"status", status}}); }

std::unique_ptr<Answer> Answer::make(const ChatFormat& format, const ApiRequest& request, AnswerHead head,
                                     const std::vector<std::vector<int32_t>>& prompts,
                                     const std::vector<int32_t>& forced) {
  if (request.kind == ApiKind::kResponse)
    return std::make_unique<ResponseAnswer>(format, request, std::move(head), prompts, forced);
  return std::make_unique<TextAnswer>(format, request, std::move(head), prompts, forced);
}

Answer::~Answer() = default;

Answer::Answer(const ChatFormat& format, const ApiRequest& request, AnswerHead head,
               const std::vector<std::vector<int32_t>>& prompts, const std::vector<int32_t>& forced)
    : tokenizer_(format.tokenizer()),
      kind_(request.kind),
      stream_(request.stream),
      logprobs_(request.sampling.logprobs),
      generates_(request.sampling.max_tokens != 0),
      head_(std::move(head)),
      choices_each_(request.choices) {
  for (size_t p = 0; p < prompts.size(); ++p) {
    prompt_tokens_ += std::ssize(prompts[p]);
    for (int64_t i = 0; i < request.choices; ++i) {
      auto choice = std::make_unique<AnswerChoice>(format, request);
      choice->begin_with(forced);
      if (request.echo) {
        const auto* text = std::get_if<std::string>(&request.prompts[p]);
        const bool added = text && request.add_special_tokens;
        choice->echo(valid_utf8(text ? *text : tokenizer_.decode(prompts[p])), prompts[p],
                     added ? tokenizer_.special_ends() : SpecialEnds{});
      }
      choices_.push_back(std::move(choice));
    }
  }
  open_ = choices();
}

void Answer::push(int64_t choice, const GeneratedToken& token, std::string* out) {
  if (done(choice)) return;
  AnswerChoice& c = *choices_[static_cast<size_t>(choice)];
  completion_tokens_ += generates_ ? 1 : 0;
  // The cached tokens of a prompt count only once, even if it has several choices.
  if (c.tokens() == 0 && choice % choices_each_ == 0) cached_tokens_ += token.cached_tokens;
  c.push(token);
  if (c.done()) --open_;
  const std::vector<AnswerPiece> pieces = c.take();
  if (stream_) append(choice, pieces, out);
}

int64_t Answer::reasoning_tokens() const {
  int64_t sum = 0;
  for (const auto& choice : choices_) sum += choice->reasoning_tokens();
  return sum;
}

}  // namespace sluice
