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
  std::optional<float> logprob = {};  // none for the first token of a prompt
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
  // kText only, and only if log probabilities are requested: the tokens that begin in `text`.
  std::vector<TextToken> tokens = {};
};

// Stop strings are matched only in the text for the user.
class AnswerChoice {
 public:
  // `format` must outlive the choice.
  AnswerChoice(const ChatFormat& format, const ApiRequest& request);
  // Takes the last tokens of the prompt that belong to the answer.
  void begin_with(const std::vector<int32_t>& tokens);
  // Makes the text begin with the prompt. `tokens` are the tokens of `text`, with the special tokens `ends`
  // around them, whose text is not part of `text`.
  void echo(const std::string& text, const std::vector<int32_t>& tokens, const SpecialEnds& ends);
  void push(const GeneratedToken& token);

  std::vector<AnswerPiece> take();  // the pieces since the last call
  // All pieces that take() returned; adjacent pieces of one kind are merged.
  const std::vector<AnswerPiece>& said() const { return said_; }
  // Chats only; valid once done() is true.
  const std::vector<ParsedMessage>& messages() const { return messages_; }
  bool done() const { return done_; }
  bool called() const { return called_; }
  FinishReason finish() const { return finish_; }  // valid once done() is true
  // The stop string that ended the choice, if any.
  const std::optional<std::string>& stop() const { return stop_.found(); }
  // The model's or the request's stop token that ended the choice, if no stop string did.
  const std::optional<int32_t>& stop_token() const { return stop_token_; }
  int64_t tokens() const { return tokens_; }
  int64_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  // `word` is the token that caused the events. If it begins a message in a format without headers, it counts as content. Null: it
  // never does.
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
  bool continues_;    // inside the content of the message to continue, which the parser has not reported yet
  // Prompt tokens that precede the answer's tokens in lists of log probabilities.
  std::vector<int32_t> echoed_;
  size_t text_begins_ = 0, text_ends_ = 0;  // the range of tokens in `echoed_` that belong to the text
  std::unique_ptr<AnswerParser> parser_;    // chats only
  StreamDecoder decoder_;                   // completions only
  StopMatcher stop_;
  AnswerPiece::Kind kind_ = AnswerPiece::Kind::kText;  // kind of the current text
  bool within_ = false;                                // inside the content of a message
  int64_t text_bytes_ = 0, text_characters_ = 0;       // length of the text for the user
  int64_t shown_bytes_ = 0;                            // bytes of that text that take() may return
  std::deque<TextToken> held_;                         // tokens whose text is still held back
  std::vector<TextToken> header_;                      // tokens since the last content
  std::vector<AnswerPiece> new_, said_;
  std::vector<ParsedMessage> messages_;
  std::optional<int32_t> stop_token_;
  bool done_ = false, called_ = false;
  FinishReason finish_ = FinishReason::kNone;
  int64_t tokens_ = 0, reasoning_tokens_ = 0;
};

}  // namespace sluice
