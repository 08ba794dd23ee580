// Parses a model's output in harmony, token by token. Accepts any output.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/harmony.h"

namespace sluice {

using HarmonyEnd = MessageEnd;
using HarmonyEvent = AnswerEvent;
using ParsedHarmony = ParsedAnswer;

// Errors are handled as follows. A "note" is a text in `recovered`.
//   - Without <|message|>, the recognized words at the start of a header are the header, and the rest is content. The same holds if a
//     header is longer than kHeaderBytesMax, so that text is not held back forever.
//   - The same holds if the tokens end in a header, except that a last word that may be the beginning of a header word becomes a note.
//   - <|start|> or <|channel|> in content ends the message. <|channel|> also begins a message of the assistant.
//   - Text, <|channel|> or <|message|> between messages, without <|start|>, begins a message of the assistant.
//   - If <|start|> follows a header directly, the header is dropped, with a note.
//   - Unknown words of a header become a note. An unknown channel is kept, with a note.
//   - A special token without a meaning at its place is ignored, with a note.
class HarmonyParser final : public AnswerParser {
 public:
  static constexpr int64_t kHeaderBytesMax = 1024;
  enum class Begin : uint8_t {
    kMessage,    // the tokens begin with a message
    kAssistant,  // the tokens continue a prompt that ends with "<|start|>assistant"
    kFinal,      // the tokens continue the content of a final message
  };
  HarmonyParser(const Harmony& harmony, Begin begin);

  std::vector<HarmonyEvent> push(int32_t id) override;
  // Call it after the last token. After that the parser is in its initial state again.
  ParsedHarmony finish() override;

 private:
  enum class Phase : uint8_t { kBetween, kAuthor, kChannel, kConstrain, kContent };
  enum class Header : uint8_t { kComplete, kWithoutMessage };
  // The bytes of a header's parts, which are interpreted at the end of the header.
  struct Parts {
    std::string author, channel, constrain;
    std::string stray;  // words without a meaning
    // True if no <|start|> ROLE was read. Then the role is assistant, unless the header names another role.
    bool implied = false;
    bool has_channel = false, has_constrain = false;
    int64_t bytes() const {
      return static_cast<int64_t>(author.size() + channel.size() + constrain.size() + stray.size());
    }
    bool blank() const;
  };

  void on_start();
  void on_channel();
  void on_constrain();
  void on_message();
  void on_end(HarmonyEnd end, std::string_view name);
  void on_text(std::string_view bytes);
  enum class Author : uint8_t { kFollows, kImplied };
  void begin_header(Author author);
  void end_header(Header how);
  std::string understand(Header how);  // fills the header of current_; returns the words without a meaning
  void open_content(Header how, const std::string& stray);
  HarmonyEvent& add_event(HarmonyEvent::Kind kind);
  void drop_header();
  void drop_cut_word();
  void read_author(Header how, std::string* stray);
  void read_channel(Header how, std::string* stray);
  void read_constrain(Header how, std::string* stray);
  void take_recipient(std::string_view* rest);
  void end_message(HarmonyEnd end);
  void add_content(const std::string& text);
  // adds a note, unless the last note is the same
  void note(std::string_view what);
  // always adds a note, so that `text` is not lost
  void note_text(std::string_view what, std::string_view text);
  void add_note(std::string_view what);

  Harmony harmony_;
  Begin begin_;
  bool is_continued_ = false;  // with kFinal: whether the message to continue was opened
  Phase phase_ = Phase::kBetween;
  Parts parts_;
  ParsedMessage current_;
  Utf8Stream content_;
  ParsedHarmony done_;  // `events` belong to the current push()
};

}  // namespace sluice
