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

// Errors are handled as follows:
//   - no <|message|>: the recognized part of the header is the header, and the rest is content. The same holds for a header
//     longer than kHeaderBytesMax, so that text is not held back forever.
//   - the tokens end in a header: as without <|message|>, but a last word that may begin a header word becomes a note.
//   - <|start|> or <|channel|> in content: the message ends. <|channel|> also begins a message of the assistant.
//   - no <|start|>: text, <|channel|> or <|message|> between messages begin a message of the assistant.
//   - a header followed by <|start|>, without text: dropped, with a note.
//   - unknown words of a header: a note. An unknown channel: kept, with a note.
//   - a special token without a meaning at its place: a note, and otherwise ignored.
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
  // Call it after the last token. Then the parser is in its initial state again.
  ParsedHarmony finish() override;

 private:
  enum class Phase : uint8_t { kBetween, kAuthor, kChannel, kConstrain, kContent };
  enum class Header : uint8_t { kComplete, kWithoutMessage };
  // The bytes of a header's parts, before they are interpreted.
  struct Parts {
    std::string author, channel, constrain;
    std::string stray;  // words without a meaning
    // No <|start|> ROLE was read: the role is the assistant unless the header names another.
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
  std::string understand(Header how);  // fills the header of current_; returns the uninterpreted words
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
  void note(std::string_view what);                              // unless the last note says the same
  void note_text(std::string_view what, std::string_view text);  // always, because `text` must not be lost
  void add_note(std::string_view what);

  Harmony harmony_;
  Begin begin_;
  bool is_continued_ = false;  // kFinal: the message has begun
  Phase phase_ = Phase::kBetween;
  Parts parts_;
  ParsedMessage current_;
  Utf8Stream content_;
  ParsedHarmony done_;  // `events` belong to the current push()
};

}  // namespace sluice
