// Questions and answers over a session, in the model's chat format.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/common/session.h"
#include "chat/prompt_limit.h"
#include "chat/reply.h"
#include "chat/sampling.h"
#include "text/chat_format.h"

namespace sluice::apps {

struct ChatFlags {
  std::string format = "auto";              // of the model's chats: a name of text/chat_format.h
  std::string reasoning_effort = "medium";  // low, medium, high
  std::optional<bool> thinking = {};        // none: as the format does by itself
  std::string system_prompt;                // instructions to the model
  std::string current_date;                 // "2025-06-28"; empty: today
};
Result<ChatOptions> chat_options(const ChatFlags& flags);

// Asked after each step: whether the answer should end there.
using StopAnswer = std::function<bool()>;

// The tokenizer of a model, or beside random weights without one a stand-in, in its chat format; read before the weights, because a refusal
// is then quick. Where the format is not known it is not usable(). kIo, kCorrupt, kUnsupported: names file and key.
Result<ChatFormatPointer> load_chat_format(const ModelFlags& model, const std::string& format);
// The same for a program that does nothing but chat: a format that is usable(), and says what the flags ask.
Result<ChatFormatPointer> load_chat_format(const ModelFlags& model, const ChatFlags& flags);
// kInvalidArgument: the flags ask for what the format has no place for.
Status check_chat_flags(const ChatFormat& format, const ChatFlags& flags);

// kCorrupt: the tokenizer has more tokens than the model in `directory`, which has `vocab`.
Status check_vocabulary(const std::string& directory, const Tokenizer& tokenizer, int64_t vocab);

class Chat {
 public:
  // What check_vocabulary() says of the session's model.
  static Result<Chat> open(Session& session, ChatFormatPointer format);
  const ChatFormat& format() const { return *format_; }
  SamplingParams sampling(const RequestSampling& sampling) const;
  // The tokens that ask for the next message. kInvalidArgument, before any work, for a last message of more bytes than the context's
  // tokens can have.
  Result<std::vector<int32_t>> prompt(const Conversation& conversation) const;
  // Generates one reply, alone in the engine. Text for the user ends before any of `stops`, of which none is empty. `filter` may be
  // empty.
  Result<Reply> ask(const Conversation& conversation, const RequestSampling& sampling,
                    const std::vector<std::string>& stops, const TextSink& sink, const StopAnswer& stop,
                    std::shared_ptr<TokenFilter> filter);

 private:
  Chat(Session& session, ChatFormatPointer format);
  Session* session_;
  ChatFormatPointer format_;
  PromptLimit limit_;
};

}  // namespace sluice::apps
