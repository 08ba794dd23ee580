#include "text/harmony_parser.h"

#include <algorithm>

namespace sluice {
namespace {

constexpr std::string_view kBlanks = " \t\r\n\v\f";
constexpr std::string_view kChannels[] = {"analysis", "commentary", "final"};

std::string_view trimmed_left(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  return text;
}
std::string_view trimmed(std::string_view text) {
  text = trimmed_left(text);
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);
}
bool is_blank(std::string_view text) { return trimmed_left(text).empty(); }

// Returns the first word of `text`, which must not begin with blanks, and stores the rest in `after`.
std::string_view first_word(std::string_view text, std::string_view* after) {
  const size_t size = std::min(text.find_first_of(kBlanks), text.size());
  *after = text.substr(size);
  return text.substr(0, size);
}

std::string_view last_word(std::string_view text) { return text.substr(text.find_last_of(kBlanks) + 1); }

bool is_known_channel(std::string_view word) {
  return std::find(std::begin(kChannels), std::end(kChannels), word) != std::end(kChannels);
}

// Whether a word looks like a content type, as opposed to content.
bool is_type(std::string_view word) {
  return !word.empty() && std::all_of(word.begin(), word.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_-./+").find(c) != std::string_view::npos;
  });
}

void join(std::string_view text, std::string* out) {
  if (is_blank(text)) return;
  if (!out->empty()) *out += ' ';
  *out += trimmed_left(text);
}

}  // namespace

bool HarmonyParser::Parts::blank() const {
  return !has_channel && !has_constrain && is_blank(author) && is_blank(stray);
}

HarmonyParser::HarmonyParser(const Harmony& harmony, Begin begin) : harmony_(harmony), begin_(begin) {
  if (begin == Begin::kAssistant) begin_header(Author::kImplied);
}

std::vector<HarmonyEvent> HarmonyParser::push(int32_t id) {
  if (begin_ == Begin::kFinal && !std::exchange(is_continued_, true)) {
    current_ = {};
    current_.message = text_message({}, Said::kFinal);
    open_content(Header::kComplete, {});
  }
  if (id == harmony_.start_)
    on_start();
  else if (id == harmony_.channel_)
    on_channel();
  else if (id == harmony_.constrain_)
    on_constrain();
  else if (id == harmony_.message_)
    on_message();
  else if (id == harmony_.end_)
    on_end(HarmonyEnd::kEnd, "<|end|>");
  else if (id == harmony_.call_)
    on_end(HarmonyEnd::kCall, "<|call|>");
  else if (id == harmony_.return_)
    on_end(HarmonyEnd::kReturn, "<|return|>");
  else if (harmony_.tokenizer_.is_special(id))
    note(std::string(harmony_.tokenizer_.piece(id)) + " has no meaning here");
  else
    on_text(harmony_.tokenizer_.decode({&id, 1}));
  return std::exchange(done_.events, {});
}

ParsedHarmony HarmonyParser::finish() {
  if (phase_ == Phase::kContent) {
    note("the tokens ended within its content");
    end_message(HarmonyEnd::kNothing);
  } else if (phase_ != Phase::kBetween && !parts_.blank()) {
    note("the tokens ended within its header");
    drop_cut_word();
    end_header(Header::kWithoutMessage);
    end_message(HarmonyEnd::kNothing);
  } else if (phase_ != Phase::kBetween) {
    drop_header();
  }
  ParsedHarmony out = std::exchange(done_, {});
  if (begin_ == Begin::kAssistant) begin_header(Author::kImplied);
  is_continued_ = false;
  return out;
}

void HarmonyParser::on_start() {
  if (phase_ == Phase::kContent) {
    note("no <|end|> before <|start|>");
    end_message(HarmonyEnd::kNothing);
  } else if (phase_ != Phase::kBetween) {
    drop_header();
  }
  begin_header(Author::kFollows);
}

void HarmonyParser::on_channel() {
  if (phase_ == Phase::kContent) {
    note("no <|end|> before <|channel|>");
    end_message(HarmonyEnd::kNothing);
  }
  if (phase_ == Phase::kBetween) {
    begin_header(Author::kImplied);
    note("no <|start|>");
  }
  if (parts_.has_channel) {
    note("a second <|channel|>");
    join(std::exchange(parts_.channel, {}), &parts_.stray);
  }
  parts_.has_channel = true;
  phase_ = Phase::kChannel;
}

void HarmonyParser::on_constrain() {
  if (phase_ == Phase::kContent || phase_ == Phase::kBetween) return note("<|constrain|> outside a header");
  if (parts_.has_constrain) {
    note("a second <|constrain|>");
    join(std::exchange(parts_.constrain, {}), &parts_.stray);
  }
  parts_.has_constrain = true;
  phase_ = Phase::kConstrain;
}

void HarmonyParser::on_message() {
  if (phase_ == Phase::kContent) return note("<|message|> within content");
  if (phase_ == Phase::kBetween) {
    begin_header(Author::kImplied);
    note("no <|start|>");
  }
  end_header(Header::kComplete);
}

void HarmonyParser::on_end(HarmonyEnd end, std::string_view name) {
  if (phase_ == Phase::kBetween) return note(std::string(name) + " without a message");
  if (phase_ != Phase::kContent) end_header(Header::kWithoutMessage);
  end_message(end);
}

void HarmonyParser::on_text(std::string_view bytes) {
  if (phase_ == Phase::kContent) return add_content(content_.push(bytes));
  if (phase_ == Phase::kBetween) {
    begin_header(Author::kImplied);
    note("no <|start|>");
  }
  (phase_ == Phase::kAuthor    ? parts_.author
   : phase_ == Phase::kChannel ? parts_.channel
                               : parts_.constrain) += bytes;
  if (parts_.bytes() > kHeaderBytesMax) end_header(Header::kWithoutMessage);
}

void HarmonyParser::begin_header(Author author) {
  parts_ = {};
  parts_.implied = author == Author::kImplied;
  current_ = {};
  current_.message.role = ChatRole::kAssistant;
  phase_ = Phase::kAuthor;
}

// Drops a header after which another header begins or the tokens end.
void HarmonyParser::drop_header() {
  std::string verbatim;
  for (const std::string* part : {&parts_.author, &parts_.channel, &parts_.constrain}) join(*part, &verbatim);
  const std::string stray = understand(Header::kWithoutMessage);
  if (!stray.empty()) {
    open_content(Header::kWithoutMessage, stray);
    return end_message(HarmonyEnd::kNothing);
  }
  phase_ = Phase::kBetween;
  const std::string notes = std::exchange(current_, {}).recovered;
  if (!notes.empty()) note(notes);
  if (!verbatim.empty()) note_text("a header without a message", trimmed(verbatim));
}

// If the tokens end in a header, the header's last word may be incomplete. Drops the word if a longer word that is allowed at this place begins
// with it, because then it is probably neither text of the answer nor a tool's name.
void HarmonyParser::drop_cut_word() {
  std::string& part = phase_ == Phase::kAuthor    ? parts_.author
                      : phase_ == Phase::kChannel ? parts_.channel
                                                  : parts_.constrain;
  const size_t at = part.find_last_of(kBlanks) + 1;
  const std::string_view word = std::string_view(part).substr(at);
  const std::string_view before = trimmed(std::string_view(part).substr(0, at));
  const auto begins = [&](std::string_view whole) { return whole.starts_with(word); };
  bool cut = false;
  bool recipient = false;  // whether a recipient may stand here
  if (phase_ == Phase::kAuthor) {
    cut = before.empty() && !parts_.implied && begins("assistant");
    recipient = parts_.implied ? before.empty() : parse_role(before).has_value();
  } else if (phase_ == Phase::kChannel) {
    cut = before.empty()
              ? std::any_of(std::begin(kChannels), std::end(kChannels), begins) && !is_known_channel(word)
              : last_word(before).starts_with("to=") && is_type(word);
    recipient = is_known_channel(before);
  } else {
    recipient = is_type(before);
  }
  cut = cut || (recipient && (word.starts_with("to=") || (!before.empty() && begins("to="))));
  if (!cut || word.empty()) return;
  note_text("an incomplete word", word);
  part.resize(at);
}

void HarmonyParser::take_recipient(std::string_view* rest) {
  std::string_view after;
  const std::string_view word = first_word(trimmed_left(*rest), &after);
  if (word.size() <= 3 || !word.starts_with("to=") || !current_.message.recipient.empty()) return;
  current_.message.recipient = valid_utf8(word.substr(3));
  *rest = after;
}

// Parses [ROLE or the name of a tool][ to=RECIPIENT]. Without <|message|>, a single word is probably the beginning of an answer and not a
// tool's name, and without <|start|> not a role either.
void HarmonyParser::read_author(Header how, std::string* stray) {
  std::string_view rest = trimmed_left(parts_.author), after;
  const std::string_view word = first_word(rest, &after);
  const auto role = parse_role(word);
  if (role && (how == Header::kComplete || !parts_.implied)) {
    current_.message.role = *role;
    rest = after;
  } else if (how == Header::kComplete && !parts_.implied && !word.empty() && !word.starts_with("to=")) {
    std::string_view rest_of_header = after;
    take_recipient(&rest_of_header);
    if (!is_blank(rest_of_header)) {
      current_.message.recipient.clear();  // more words follow, so "to=..." was part of a sentence
    } else {
      current_.message.role = ChatRole::kTool;
      current_.message.name = valid_utf8(word);
      rest = {};
    }
  }
  take_recipient(&rest);
  join(rest, stray);
}

// Parses CHANNEL[ to=RECIPIENT][ CONTENT_TYPE].
void HarmonyParser::read_channel(Header how, std::string* stray) {
  if (!parts_.has_channel) return;
  std::string_view rest = trimmed_left(parts_.channel), after;
  const std::string_view word = first_word(rest, &after);
  const bool known = is_known_channel(word);
  if (known || (how == Header::kComplete && !word.empty() && !word.starts_with("to="))) {
    current_.message.channel = valid_utf8(word);
    rest = after;
    if (!known) note("an unknown channel");
  }
  take_recipient(&rest);
  const std::string_view last = trimmed(rest);
  if (how == Header::kComplete && !parts_.has_constrain && is_type(last)) {
    current_.message.content_type = last;
    return;
  }
  join(rest, stray);
}

void HarmonyParser::read_constrain(Header how, std::string* stray) {
  if (!parts_.has_constrain) return;
  std::string_view rest = trimmed_left(parts_.constrain), after;
  const std::string_view word = first_word(rest, &after);
  if (how == Header::kComplete || is_type(word)) {
    current_.message.content_type = valid_utf8(word);
    rest = after;
  }
  take_recipient(&rest);
  join(rest, stray);
}

std::string HarmonyParser::understand(Header how) {
  std::string stray = std::exchange(parts_.stray, {});
  read_author(how, &stray);
  read_channel(how, &stray);
  read_constrain(how, &stray);
  return stray;
}

void HarmonyParser::end_header(Header how) { open_content(how, understand(how)); }

void HarmonyParser::open_content(Header how, const std::string& stray) {
  phase_ = Phase::kContent;
  add_event(HarmonyEvent::Kind::kHeader).message = current_.message;
  if (how == Header::kWithoutMessage) {
    note("no <|message|>");
    add_content(content_.push(stray));
  } else if (!stray.empty()) {
    note_text("unknown words in the header", trimmed(stray));
  }
}

HarmonyEvent& HarmonyParser::add_event(HarmonyEvent::Kind kind) {
  HarmonyEvent& event = done_.events.emplace_back();
  event.kind = kind;
  return event;
}

void HarmonyParser::add_content(const std::string& text) {
  if (text.empty()) return;
  current_.message.content += text;
  add_event(HarmonyEvent::Kind::kText).text = text;
}

void HarmonyParser::end_message(HarmonyEnd end) {
  add_content(content_.finish());
  current_.end = end;
  add_event(HarmonyEvent::Kind::kEnd).end = end;
  done_.messages.push_back(std::exchange(current_, {}));
  phase_ = Phase::kBetween;
}

void HarmonyParser::note(std::string_view what) {
  const std::string& notes = phase_ == Phase::kBetween ? done_.recovered : current_.recovered;
  if (!notes.ends_with(what)) add_note(what);  // reports repeated errors once
}

void HarmonyParser::note_text(std::string_view what, std::string_view text) {
  add_note(std::string(what) + ": '" + valid_utf8(text) + "'");
}

void HarmonyParser::add_note(std::string_view what) {
  std::string& notes = phase_ == Phase::kBetween ? done_.recovered : current_.recovered;
  if (!notes.empty()) notes += "; ";
  notes += what;
}

}  // namespace sluice
