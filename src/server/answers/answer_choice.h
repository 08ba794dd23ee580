// What one choice of an answer says, in pieces: text for the user, reasoning, calls of functions.
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
  std::optional<float> logprob = {};  // none of the first token of a prompt
  std::vector<TokenLogprob> top_logprobs = {};
  int64_t offset = 0, characters = 0;  // bytes and code points of the text before it
};

struct AnswerPiece {
  enum class Kind : uint8_t {
    kReasoning,
    kText,
    kCall,       // `text` is the name of the function
    kArguments,  // of the call before
  };
  Kind kind = Kind::kText;
  std::string text;
  std::vector<TextToken> tokens = {};  // of kText, where log probabilities are wanted: those that begin in it
};

// A stop string is looked for in the text for the user alone.
class AnswerChoice {
 public:
  // `format` outlives it.
  AnswerChoice(const ChatFormat& format, const ApiRequest& request);
  void begin_with(
      const std::vector<int32_t>& tokens);  // which the prompt ends with; they belong to the answer
  // The prompt is the beginning of the text.
  void echo(const std::string& text, const std::vector<int32_t>& tokens);
  void push(const GeneratedToken& token);

  std::vector<AnswerPiece> take();  // what is new since the last call
  const std::vector<AnswerPiece>& said() const {
    return said_;
  }  // all that was taken, joined where it goes on
  const std::vector<ParsedMessage>& messages() const { return messages_; }  // of a chat that is done
  bool done() const { return done_; }
  bool called() const { return called_; }
  FinishReason finish() const { return finish_; }                           // of one that is done
  const std::optional<std::string>& stop() const { return stop_.found(); }  // the string that ended it
  // The token that ended it, if none did so as text: one of the model's or of the request's.
  const std::optional<int32_t>& stop_token() const { return stop_token_; }
  int64_t tokens() const { return tokens_; }
  int64_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  // `word` gave the events, and is content if a message begins among them, as in a format without headers; null: it is not in any case.
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
  bool only_echoes_;                      // nothing that is drawn belongs to the answer
  std::vector<int32_t> echoed_;           // tokens that come before those of the answer in its lists
  std::unique_ptr<AnswerParser> parser_;  // of a chat
  StreamDecoder decoder_;                 // of a completion
  StopMatcher stop_;
  AnswerPiece::Kind kind_ = AnswerPiece::Kind::kText;  // of what is being said
  bool within_ = false;                                // the content of a message is being said
  int64_t text_bytes_ = 0, text_characters_ = 0;       // of the text for the user
  int64_t shown_bytes_ = 0;                            // of it: given out
  std::deque<TextToken> held_;                         // tokens of text that is not given out yet
  std::vector<TextToken> header_;                      // tokens since the last content
  std::vector<AnswerPiece> new_, said_;
  std::vector<ParsedMessage> messages_;
  std::optional<int32_t> stop_token_;
  bool done_ = false, called_ = false;
  FinishReason finish_ = FinishReason::kNone;
  int64_t tokens_ = 0, reasoning_tokens_ = 0;
};

}  // namespace sluice
