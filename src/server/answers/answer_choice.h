// Splits the text of one choice into pieces: text for the user, reasoning, function calls.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chat/stop_matcher.h"
#include "engine/request.h"
#include "server/requests/request.h"
#include "text/chat_format.h"

namespace sluice {

// A token of the text for the user.
struct TextToken {
  int32_t id = 0;
  std::optional<float> logprob = {};  // nullopt for the first token of a prompt
  std::vector<TokenLogprob> top_logprobs = {};
  int64_t offset = 0, characters = 0;  // length of the text before the token, in bytes and in code points
};

struct AnswerPiece {
  enum class Kind : uint8_t {
    kReasoning,
    kText,
    kCall,       // `text` is the name of the function
    kArguments,  // of the preceding call
  };
  Kind kind = Kind::kText;
  std::string text;
  // The tokens that begin in `text`. Only for kText, and only if log probabilities are requested.
  std::vector<TextToken> tokens = {};
};

// Stop strings are searched only in the text for the user, not in reasoning or calls.
class AnswerChoice {
 public:
  // `format` must outlive the choice.
  AnswerChoice(const ChatFormat& format, const ApiRequest& request);
  // Adds the last tokens of the prompt, which belong to the answer.
  void begin_with(const std::vector<int32_t>& tokens);
  // Puts the prompt at the start of the text. `text` is the prompt's text and `tokens` are its tokens. `tokens` also
  // have the special tokens `ends` around them, which `text` does not contain.
  void echo(const std::string& text, const std::vector<int32_t>& tokens, const SpecialEnds& ends);
  void push(const GeneratedToken& token);

  std::vector<AnswerPiece> take();  // the pieces since the last call
  // All pieces that take() returned; adjacent pieces of one kind are merged.
  const std::vector<AnswerPiece>& said() const { return said_; }
  // Chats only; valid once done() is true.
  const std::vector<ParsedMessage>& messages() const { return messages_; }
  bool done() const { return done_; }
  bool called() const { return called_; }
  // Whether the answer ended inside the arguments of a call, as at a token of stop_token_ids; valid once done() is true.
  bool cut_in_call() const { return cut_in_call_; }
  FinishReason finish() const { return finish_; }  // valid once done() is true
  // The stop string that ended the choice, if any.
  const std::optional<std::string>& stop() const { return stop_.found(); }
  // The stop token (of the model or of the request) that ended the choice, unless a stop string ended it.
  const std::optional<int32_t>& stop_token() const { return stop_token_; }
  int64_t tokens() const { return tokens_; }
  int64_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  // `word` is the token that caused the events. If the token begins a message in a format without headers, it counts as content. Null: the
  // token is already counted, or never counts.
  void read(const std::vector<AnswerEvent>& events, const GeneratedToken* word = nullptr);
  void add(AnswerPiece::Kind kind, const std::string& text);
  void add_text(const std::string& text);
  void list_echoed(const std::vector<TokenScore>& scores);
  void hold(const GeneratedToken& token);
  void hold_header(const std::string& text);
  void show(const std::string& text);
  void end(FinishReason finish);

  const ChatFormat& format_;
  Tokenizer tokenizer_;
  bool show_reasoning_, offers_tools_, wants_logprobs_;
  bool only_echoes_;  // sampled tokens do not belong to the answer
  // the answer continues the content of a message, and the parser has not reported an event yet
  bool continues_;
  // The tokens of an echoed prompt, which come first in lists of log probabilities.
  std::vector<int32_t> echoed_;
  // range of the tokens in `echoed_` whose text is part of the answer's
  size_t text_begins_ = 0, text_ends_ = 0;
  std::unique_ptr<AnswerParser> parser_;  // chats only
  StreamDecoder decoder_;                 // completions only
  StopMatcher stop_;
  AnswerPiece::Kind kind_ = AnswerPiece::Kind::kText;  // kind of the current text
  bool within_ = false;                                // inside the content of a message
  int64_t text_bytes_ = 0, text_characters_ = 0;       // length of the text for the user
  // length of that text without what a stop string may still cut
  int64_t shown_bytes_ = 0;
  std::deque<TextToken> held_;  // tokens that begin after the first shown_bytes_ bytes
  // tokens read since the last content, outside of content
  std::vector<TextToken> header_;
  std::vector<AnswerPiece> new_, said_;
  std::vector<ParsedMessage> messages_;
  std::optional<int32_t> stop_token_;
  bool done_ = false, called_ = false, cut_in_call_ = false;
  FinishReason finish_ = FinishReason::kNone;
  int64_t tokens_ = 0, reasoning_tokens_ = 0;
};

}  // namespace sluice
