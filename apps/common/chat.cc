#include "apps/common/chat.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <functional>
#include <iterator>

#include "apps/common/stand_in_tokenizer.h"
#include "base/utf8.h"
#include "chat/stop_matcher.h"

namespace sluice::apps {
namespace {

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm date{};
  localtime_r(&now, &date);
  char text[16];
  std::strftime(text, sizeof text, "%Y-%m-%d", &date);
  return text;
}

bool is_date(const std::string& text) {
  int year = 0;
  unsigned month = 0, day = 0;
  int end = 0;
  if (text.size() != 10 || text.find_first_not_of("0123456789-") != std::string::npos) return false;
  if (std::sscanf(text.c_str(), "%4d-%2u-%2u%n", &year, &month, &day, &end) != 3 || end != 10) return false;
  return std::chrono::year_month_day(std::chrono::year(year), std::chrono::month(month),
                                     std::chrono::day(day))
      .ok();
}

}  // namespace

Result<ChatOptions> chat_options(const ChatFlags& flags) {
  ChatOptions out;
  const std::vector<std::string> known{"low", "medium", "high"};
  size_t at = 0;
  while (at < known.size() && known[at] != flags.reasoning_effort) ++at;
  if (at == known.size()) return unknown_name("--reasoning-effort", flags.reasoning_effort, known);
  out.effort = static_cast<ReasoningEffort>(at);
  if (!flags.current_date.empty() && !is_date(flags.current_date))
    return invalid("--current-date: wanted a date such as 2025-06-28, found '" + flags.current_date + "'");
  if (!is_utf8(flags.system_prompt))
    return invalid("--system-prompt: wanted text in UTF-8, found other bytes");
  out.current_date = flags.current_date.empty() ? today() : flags.current_date;
  out.developer_instructions = flags.system_prompt;
  out.thinking = flags.thinking;
  return out;
}

namespace {

Result<Tokenizer> tokenizer_of(const ModelFlags& model, const std::string& directory) {
  const std::string path = directory + "/tokenizer.json";
  std::error_code error;
  if (std::filesystem::exists(path, error)) return Tokenizer::load(path);
  const auto format = load_format_of(model.load_format);
  if (!format.ok()) return format.status();
  if (format.value() != LoadFormat::kDummy)
    return Status{Code::kIo, path +
                                 ": cannot be opened: no such file; run, serve and eval need the model's "
                                 "tokenizer, bench does not"};
  const auto config = read_model_config(directory);
  if (!config.ok()) return config.status();
  const auto made = stand_in_tokenizer(config.value().decoder.vocab);
  if (!made.ok()) return made.status();
  return Tokenizer::parse(made.value().dump(), "stand-in tokenizer");
}

}  // namespace

// Like transformers, prefers chat_template.jinja to tokenizer_config.json. If the latter has a list of templates, uses the template named
// "default".
static Result<std::optional<std::string>> chat_template_of(const std::string& directory) {
  constexpr int64_t kTemplateBytesMax = 1 << 20, kConfigBytesMax = 16 << 20;
  using Found = std::optional<std::string>;
  std::error_code error;
  if (const std::string path = directory + "/chat_template.jinja"; std::filesystem::exists(path, error)) {
    auto text = read_file(path, kTemplateBytesMax);
    if (!text.ok()) return text.status();
    return Found(std::move(text).value());
  }
  const std::string path = directory + "/tokenizer_config.json";
  if (!std::filesystem::exists(path, error)) return Found();
  const auto document = read_json(path, kConfigBytesMax);
  if (!document.ok()) return document.status();
  const JsonAt config(document.value(), path);
  SLUICE_TRY(config.need_object());
  if (!config.has("chat_template")) return Found();
  const JsonAt at = config.at("chat_template").value();
  if (!at.value().is_array()) {
    auto text = at.string();
    if (!text.ok()) return text.status();
    return Found(std::move(text).value());
  }
  const auto named = at.items();
  if (!named.ok()) return named.status();
  for (const JsonAt& one : named.value()) {
    const auto name = one.string("name"), text = one.string("template");
    for (const Status& status : {name.status(), text.status()})
      if (!status.ok()) return status;
    if (name.value() == "default") return Found(text.value());
  }
  return Found();
}

Result<ChatFormatPointer> load_chat_format(const ModelFlags& model, const std::string& format) {
  const auto directory = model_directory(model.model);
  if (!directory.ok()) return directory.status();
  const auto tokenizer = tokenizer_of(model, directory.value());
  if (!tokenizer.ok()) return tokenizer.status();
  auto chat_template = chat_template_of(directory.value());
  if (!chat_template.ok()) return chat_template.status();
  const auto config = read_model_config(directory.value());
  if (!config.ok()) return config.status();
  auto opened = open_chat_format(format, {.tokenizer = tokenizer.value(),
                                          .chat_template = std::move(chat_template).value(),
                                          .stop_tokens = config.value().stop_tokens,
                                          .option = "--chat-format"});
  if (opened.ok() || opened.status().code == Code::kInvalidArgument) return opened;
  return Status{opened.status().code, directory.value() + ": " + opened.status().message};
}

Result<ChatFormatPointer> load_chat_format(const ModelFlags& model, const ChatFlags& flags) {
  auto format = load_chat_format(model, flags.format);
  if (!format.ok()) return format;
  if (const Status usable = format.value()->usable(); !usable.ok()) return usable;
  SLUICE_TRY(check_chat_flags(*format.value(), flags));
  return format;
}

Status check_chat_flags(const ChatFormat& format, const ChatFlags& flags) {
  const ChatAbilities can = format.abilities();
  const std::string has_none =
      ", because the chat format " + std::string(format.name()) + " does not support it, found ";
  if (!can.efforts && flags.reasoning_effort != "medium")
    return invalid("--reasoning-effort: wanted none" + has_none + flags.reasoning_effort);
  if (!can.thinking_switch && flags.thinking)
    return invalid("--thinking: wanted none" + has_none + (*flags.thinking ? "--thinking" : "--no-thinking"));
  if (!can.system_message && !flags.current_date.empty())
    return invalid("--current-date: wanted none" + has_none + flags.current_date);
  return {};
}

Chat::Chat(Session& session, ChatFormatPointer format)
    : session_(&session),
      format_(std::move(format)),
      limit_(format_->tokenizer(), session.engine->max_model_len()) {}

Result<std::vector<int32_t>> Chat::prompt(const Conversation& conversation) const {
  const int64_t bytes = conversation.messages.empty() ? 0 : std::ssize(conversation.messages.back().content);
  const int64_t fewest = limit_.fewest_tokens(bytes);
  if (!limit_.fits(fewest))
    return invalid("prompt: wanted fewer than " + std::to_string(limit_.max_model_len()) +
                   " tokens (the context, --max-model-len), found " + std::to_string(bytes) +
                   " bytes, at least " + std::to_string(fewest));
  return format_->prompt(conversation);
}

Status check_vocabulary(const std::string& directory, const Tokenizer& tokenizer, int64_t vocab) {
  const int64_t tokens = tokenizer.vocab_size();
  if (tokens <= vocab) return {};
  return {Code::kCorrupt, directory + "/tokenizer.json: wanted at most " + std::to_string(vocab) +
                              " tokens (vocab_size of config.json), found " + std::to_string(tokens)};
}

Result<Chat> Chat::open(Session& session, ChatFormatPointer format) {
  SLUICE_TRY(check_vocabulary(session.directory, format->tokenizer(), session.model->config().decoder.vocab));
  return Chat(session, std::move(format));
}

SamplingParams Chat::sampling(const SamplingParams& sampling) const {
  return sampling_params(sampling, session_->model->config(), *format_);
}

namespace {

// Streams the text for the user up to the first stop string.
class UntilStop {
 public:
  UntilStop(const std::vector<std::string>& stops, const TextSink& sink)
      : matcher_(StopStrings(stops)), sink_(sink) {}
  void operator()(Channel channel, const std::string& text) {
    if (channel == Channel::kFinal) return say(matcher_.push(text));
    if (sink_ && !found()) sink_(channel, text);
  }
  bool found() const { return matcher_.found().has_value(); }
  // Emits held-back text. If a stop string was found, cuts the reply there.
  void finish(Reply* reply) {
    say(matcher_.flush());
    if (!found()) return;
    reply->finish = FinishReason::kStop;
    reply->recovered.clear();  // the parser's repairs are only due to the cut
    size_t cut = reply->text.size() - text_.size();
    for (auto m = reply->messages.rbegin(); m != reply->messages.rend() && cut > 0; ++m) {
      if (is_reasoning(*m)) continue;
      const size_t bytes = std::min(cut, m->content.size());
      m->content.resize(m->content.size() - bytes);
      cut -= bytes;
    }
    reply->text = text_;
  }

 private:
  void say(const std::string& text) {
    text_ += text;
    if (sink_ && !text.empty()) sink_(Channel::kFinal, text);
  }
  StopMatcher matcher_;
  const TextSink& sink_;
  std::string text_;
};

}  // namespace

Result<Reply> Chat::ask(const Conversation& conversation, const SamplingParams& how,
                        const std::vector<std::string>& stops, const TextSink& sink, const StopAnswer& stop,
                        std::shared_ptr<TokenFilter> filter) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const auto since = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  auto tokens_in = prompt(conversation);
  if (!tokens_in.ok()) return tokens_in.status();
  const auto prompt_tokens = static_cast<int64_t>(tokens_in.value().size());
  const auto id = session_->engine->add(
      {.prompt = std::move(tokens_in).value(), .sampling = sampling(how), .filter = std::move(filter)});
  if (!id.ok()) return id.status();
  UntilStop until(stops, sink);
  ReplyReader reader(*format_, conversation.options, std::ref(until));
  const DraftCounts before = session_->engine->draft_counts();
  double first = 0;
  bool stopped = false;
  while (!session_->engine->idle()) {
    if (until.found() || stop()) {
      session_->engine->cancel(id.value());
      stopped = !until.found();
      break;
    }
    const auto tokens = session_->engine->step();
    if (!tokens.ok()) {
      session_->engine->cancel(id.value());  // so that the engine is idle when the next prompt starts
      return tokens.status();
    }
    if (const auto failed = session_->engine->take_failed(); !failed.empty()) return failed.front().status;
    for (const GeneratedToken& token : tokens.value()) {
      if (until.found()) break;
      if (first == 0) first = since();
      reader.push(token);
    }
  }
  Reply reply = reader.finish();
  until.finish(&reply);
  if (stopped) reply.finish = FinishReason::kAbort;
  reply.prompt_tokens = prompt_tokens;
  const DraftCounts drafts = session_->engine->draft_counts();
  reply.verifications = drafts.drafts - before.drafts;
  reply.accepted_drafts = drafts.accepted - before.accepted;
  reply.first_token_seconds = first;
  reply.seconds = since();
  return reply;
}

}  // namespace sluice::apps
