// Chats with a session's model, in the model's chat format.
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
  std::string format = "auto";              // name of a chat format (text/chat_format.h), or auto
  std::string reasoning_effort = "medium";  // low, medium, high
  std::optional<bool> thinking = {};        // nullopt: the format's default
  std::string system_prompt;                // instructions for the model
  std::string current_date;                 // "2025-06-28"; empty: today
};
Result<ChatOptions> chat_options(const ChatFlags& flags);

// Called after each step. If it returns true, the answer ends.
using StopAnswer = std::function<bool()>;

// Loads a model's tokenizer and chat format; random weights without a tokenizer get a stand-in tokenizer. Call it before loading the weights,
// so that errors come early. If the format is unknown, the result is a format that is not usable(). Messages of errors name file and key.
Result<ChatFormatPointer> load_chat_format(const ModelFlags& model, const std::string& format);
// Like the function above, for programs that only chat: it is an error if the format is not usable() or does not support the flags.
Result<ChatFormatPointer> load_chat_format(const ModelFlags& model, const ChatFlags& flags);
// kInvalidArgument: a flag requests something that the format does not support.
Status check_chat_flags(const ChatFormat& format, const ChatFlags& flags);

// kCorrupt: the tokenizer has more tokens than `vocab`, the vocabulary of the model in `directory`.
Status check_vocabulary(const std::string& directory, const Tokenizer& tokenizer, int64_t vocab);

class Chat {
 public:
  // Returns the errors of check_vocabulary() for the session's model.
  static Result<Chat> open(Session& session, ChatFormatPointer format);
  const ChatFormat& format() const { return *format_; }
  SamplingParams sampling(const SamplingParams& sampling) const;
  // Tokenizes the conversation up to the start of the answer. kInvalidArgument: the last message cannot fit in the context by its number of
  // bytes, which is checked first.
  Result<std::vector<int32_t>> prompt(const Conversation& conversation) const;
  // Generates one reply. The engine must have no other request. The text for the user ends before the first stop string of `stops`; stop
  // strings must not be empty. If `filter` is null, the reply is unconstrained.
  Result<Reply> ask(const Conversation& conversation, const SamplingParams& sampling,
                    const std::vector<std::string>& stops, const TextSink& sink, const StopAnswer& stop,
                    std::shared_ptr<TokenFilter> filter);

 private:
  Chat(Session& session, ChatFormatPointer format);
  Session* session_;
  ChatFormatPointer format_;
  PromptLimit limit_;
};

}  // namespace sluice::apps
