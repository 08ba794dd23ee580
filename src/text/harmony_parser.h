// What a model says in harmony, token by token, whatever it says.
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

// What it makes of mistakes:
//   - no <|message|>: what is understood of the header is the header, all text after it is content. So is a header longer
//     than kHeaderBytesMax, at once, so that text is not held back for ever.
//   - the end of the tokens within a header: as without <|message|>, but for a last word that begins one of a header, which is noted.
//   - <|start|> or <|channel|> within content: the message ends there. <|channel|> alone begins one of the assistant.
//   - no <|start|>: text, <|channel|> or <|message|> between messages begin a message of the assistant.
//   - a header that another <|start|> follows, without text: dropped, with a note.
//   - words of a header that fit nowhere: a note. A channel that is unknown: kept, with a note.
//   - a special token that has no meaning at its place: a note, and nothing else.
class HarmonyParser final : public AnswerParser {
 public:
  static constexpr int64_t kHeaderBytesMax = 1024;
  enum class Begin : uint8_t {
    kMessage,    // the tokens begin with a message
    kAssistant,  // they continue a prompt, which ended with "<|start|>assistant"
  };
  HarmonyParser(const Harmony& harmony, Begin begin);

  std::vector<HarmonyEvent> push(int32_t id) override;
  // The end of the tokens. The parser has nothing left afterwards, and can be used for what continues a prompt or not, as at
  // its construction.
  ParsedHarmony finish() override;

 private:
  enum class Phase : uint8_t { kBetween, kAuthor, kChannel, kConstrain, kContent };
  enum class Header : uint8_t { kComplete, kWithoutMessage };
  // A header as it comes: bytes of its parts, before anything is understood.
  struct Parts {
    std::string author, channel, constrain;
    std::string stray;     // what fits nowhere
    bool implied = false;  // no <|start|> ROLE was read: the assistant's, unless it says otherwise
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
  std::string understand(Header how);  // fills the header of current_; returns what fits nowhere
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
  void note(std::string_view what);                              // once, if the last note says the same
  void note_text(std::string_view what, std::string_view text);  // always: it holds plain text
  void add_note(std::string_view what);

  Harmony harmony_;
  Begin begin_;
  Phase phase_ = Phase::kBetween;
  Parts parts_;
  ParsedMessage current_;
  Utf8Stream content_;
  ParsedHarmony done_;  // its events are those of the push() that runs
};

}  // namespace sluice
