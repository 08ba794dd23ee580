#include "text/harmony_parser.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"

namespace sluice {
namespace {

using Begin = HarmonyParser::Begin;
using Kind = HarmonyEvent::Kind;

const Harmony& harmony() {
  static const Harmony h =
      Harmony::from(Tokenizer::load(SLUICE_SOURCE_DIR "/tests/data/tokenizer/pattern_o200k.json").value())
          .value();
  return h;
}

std::vector<int32_t> ids_of(std::string_view text) {
  std::vector<int32_t> ids;
  EXPECT_TRUE(harmony().tokenizer().encode(text, Specials::kParse, &ids).ok());
  return ids;
}

// Parses tokens and checks that events agree with messages, as they must for every stream.
ParsedHarmony parse(const std::vector<int32_t>& ids, Begin begin) {
  HarmonyParser parser(harmony(), begin);
  std::vector<HarmonyEvent> events;
  for (const int32_t id : ids)
    for (HarmonyEvent& event : parser.push(id)) events.push_back(std::move(event));
  ParsedHarmony parsed = parser.finish();
  events.insert(events.end(), parsed.events.begin(), parsed.events.end());
  std::vector<Message> told;
  size_t ends = 0;
  for (const HarmonyEvent& event : events) {
    if (event.kind == Kind::kHeader) {
      EXPECT_EQ(told.size(), ends) << "a header within a message";
      EXPECT_EQ(event.message.content, "");
      told.push_back(event.message);
    } else if (event.kind == Kind::kText) {
      EXPECT_EQ(told.size(), ends + 1) << "text outside a message";
      EXPECT_EQ(event.text, valid_utf8(event.text));
      EXPECT_NE(event.text, "");
      if (!told.empty()) told.back().content += event.text;
    } else {
      EXPECT_LT(ends, parsed.messages.size());
      EXPECT_TRUE(ends >= parsed.messages.size() || event.end == parsed.messages[ends].end);
      ++ends;
    }
  }
  EXPECT_EQ(told.size(), parsed.messages.size());
  EXPECT_EQ(ends, parsed.messages.size());
  for (size_t i = 0; i < std::min(told.size(), parsed.messages.size()); ++i)
    EXPECT_EQ(told[i], parsed.messages[i].message);
  EXPECT_TRUE(parser.finish().messages.empty());
  return parsed;
}

ParsedHarmony parse(std::string_view text, Begin begin = Begin::kAssistant) {
  return parse(ids_of(text), begin);
}

TEST(HarmonyParser, ReadsAnAnswer) {
  const auto parsed = parse(
      "<|channel|>analysis<|message|>Simple.<|end|><|start|>assistant<|channel|>final<|message|>4 "
      "\xf0\x9f\x91\x8d<|return|>");
  ASSERT_EQ(parsed.messages.size(), 2u);
  EXPECT_EQ(parsed.messages[0].message,
            (Message{.role = ChatRole::kAssistant, .channel = "analysis", .content = "Simple."}));
  EXPECT_EQ(parsed.messages[1].message,
            (Message{.role = ChatRole::kAssistant, .channel = "final", .content = "4 \xf0\x9f\x91\x8d"}));
  EXPECT_EQ(parsed.messages[0].end, HarmonyEnd::kEnd);
  EXPECT_EQ(parsed.messages[1].end, HarmonyEnd::kReturn);
  for (const auto& m : parsed.messages) EXPECT_EQ(m.recovered, "");
  EXPECT_EQ(parsed.recovered, "");
}

TEST(HarmonyParser, ContinuesAFinalMessage) {
  const auto parsed = parse(" 4.<|return|>", Begin::kFinal);
  ASSERT_EQ(parsed.messages.size(), 1u);
  EXPECT_EQ(parsed.messages[0].message,
            (Message{.role = ChatRole::kAssistant, .channel = "final", .content = " 4."}));
  EXPECT_EQ(parsed.messages[0].end, HarmonyEnd::kReturn);
  EXPECT_EQ(parsed.messages[0].recovered, "");
  EXPECT_TRUE(parse("", Begin::kFinal).messages.empty());
}

TEST(HarmonyParser, ReadsACallWhereverItsRecipientStands) {
  const Message want = {.role = ChatRole::kAssistant,
                        .channel = "commentary",
                        .recipient = "functions.f",
                        .content_type = "json",
                        .content = "{}"};
  for (const char* text : {"<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>",
                           " to=functions.f<|channel|>commentary <|constrain|>json<|message|>{}<|call|>",
                           " to=functions.f<|channel|>commentary json<|message|>{}<|call|>",
                           "<|channel|>commentary to=functions.f json<|message|>{}<|call|>",
                           "<|channel|>commentary <|constrain|>json to=functions.f<|message|>{}<|call|>"}) {
    const auto parsed = parse(text);
    ASSERT_EQ(parsed.messages.size(), 1u) << text;
    EXPECT_EQ(parsed.messages[0].message, want) << text;
    EXPECT_EQ(parsed.messages[0].end, HarmonyEnd::kCall);
    EXPECT_EQ(parsed.messages[0].recovered, "") << text;
  }
}

struct Mistake {
  const char* text;
  std::vector<std::string> messages;  // "role/name/channel/recipient/content_type: content"
  const char* note;                   // a substring of some note
};

std::string shown(const Message& m) {
  return std::string(text(m.role)) + "/" + m.name + "/" + m.channel + "/" + m.recipient + "/" +
         m.content_type + ": " + m.content;
}

TEST(HarmonyParser, RecoversFromMistakes) {
  const Mistake mistakes[] = {
      {"Just an answer.<|return|>", {"assistant////: Just an answer."}, "no <|message|>"},
      {"Just an answer", {"assistant////: Just an answer"}, "ended within its header"},
      {"user guides are here<|end|>", {"assistant////: user guides are here"}, "no <|message|>"},
      {"<|channel|>final Hello there<|return|>", {"assistant//final//: Hello there"}, "no <|message|>"},
      {"<|channel|>final<|return|>", {"assistant//final//: "}, "no <|message|>"},
      {"<|message|>Hello<|return|>", {"assistant////: Hello"}, ""},
      {"<|channel|>thoughts<|message|>Hm<|end|>", {"assistant//thoughts//: Hm"}, "an unknown channel"},
      {"<|channel|>final some words<|message|>x<|end|>",
       {"assistant//final//: x"},
       "in the header: 'some words'"},
      {"<|channel|>analysis<|channel|>final<|message|>x<|end|>",
       {"assistant//final//: x"},
       "in the header: 'analysis'"},
      {"<|channel|>analysis<|message|>a<|start|>assistant<|channel|>final<|message|>b<|return|>",
       {"assistant//analysis//: a", "assistant//final//: b"},
       "no <|end|> before <|start|>"},
      {"<|channel|>analysis<|message|>a<|channel|>final<|message|>b<|return|>",
       {"assistant//analysis//: a", "assistant//final//: b"},
       "no <|end|> before <|channel|>"},
      {"<|channel|>analysis<|message|>a<|end|>assistant<|channel|>final<|message|>b<|return|>",
       {"assistant//analysis//: a", "assistant//final//: b"},
       "no <|start|>"},
      {"<|channel|>analysis<|message|>a<|end|>And so on",
       {"assistant//analysis//: a", "assistant////: And so on"},
       "no <|start|>"},
      {"<|start|>assistant<|channel|>final<|message|>b<|return|>", {"assistant//final//: b"}, ""},
      {"<|start|>assistant<|start|>assistant<|channel|>final<|message|>b<|return|>",
       {"assistant//final//: b"},
       "a header without a message: 'assistant'"},
      {"<|channel|>final<|message|>a<|message|>b<|constrain|>c<|endoftext|>d<|return|>",
       {"assistant//final//: abcd"},
       "<|message|> within content; <|constrain|> outside a header; <|endoftext|> has no meaning here"},
      {"<|channel|>final<|message|>a<|return|><|return|><|end|>",
       {"assistant//final//: a"},
       "<|return|> without a message; <|end|> without a message"},
      {"<|channel|>final<|message|>unfinish", {"assistant//final//: unfinish"}, "ended within its content"},
      {"<|channel|>", {"assistant////: "}, "ended within its header"},
      {"<|channel|>comment", {"assistant////: "}, "ended within its header"},
      {"<|channel|>commentary to", {"assistant//commentary//: "}, "ended within its header"},
      {"<|channel|>commentary to=", {"assistant//commentary//: "}, "ended within its header"},
      {"<|channel|>commentary to=functions.get_we", {"assistant//commentary//: "}, "ended within its header"},
      {"<|channel|>commentary to=functions.f js",
       {"assistant//commentary/functions.f/: "},
       "ended within its header"},
      {"<|channel|>commentary to=functions.f <|constrain|>js",
       {"assistant//commentary/functions.f/js: "},
       "ended within its header"},
      {"<|channel|>commentary <|constrain|>json to=functions.get_we",
       {"assistant//commentary//json: "},
       "ended within its header"},
      {" to=functions.get_we", {"assistant////: "}, "ended within its header"},
      {"<|channel|>analysis<|message|>a<|end|><|start|>assist",
       {"assistant//analysis//: a", "assistant////: "},
       "ended within its header"},
      {"<|channel|>analysis<|message|>a<|end|><|start|>assistant to=functions.get_we",
       {"assistant//analysis//: a", "assistant////: "},
       "ended within its header"},
      {"<|channel|>final to", {"assistant//final//: "}, "ended within its header"},
      {"<|channel|>final Welcome to", {"assistant//final//: Welcome to"}, "ended within its header"},
      {"<|channel|>final com", {"assistant//final//: com"}, "ended within its header"},
      {"Set x to=5", {"assistant////: Set x to=5"}, "ended within its header"},
      {"com", {"assistant////: com"}, "ended within its header"},
      {"<|channel|>commentary to=functions.f <|constrain|>{\"a\": 1}<|call|>",
       {"assistant//commentary/functions.f/: {\"a\": 1}"},
       "no <|message|>"},
      {"", {}, ""},
      {"<|start|>", {}, ""},
  };
  for (const Mistake& m : mistakes) {
    const auto parsed = parse(m.text);
    std::string notes = parsed.recovered;
    std::vector<std::string> messages;
    for (const auto& p : parsed.messages) {
      messages.push_back(shown(p.message));
      notes += "|" + p.recovered;
    }
    EXPECT_EQ(messages, m.messages) << m.text;
    EXPECT_NE(notes.find(m.note), std::string::npos) << m.text << "\n" << notes;
  }
}

TEST(HarmonyParser, HoldsBackNoTextIndefinitely) {
  HarmonyParser parser(harmony(), Begin::kAssistant);
  std::string told;
  const auto ids = ids_of("word ");
  for (int i = 0; i < 2000; ++i)
    for (const int32_t id : ids)
      for (const HarmonyEvent& event : parser.push(id)) told += event.text;
  EXPECT_EQ(told.size(), 10000u);
}

std::string word(Random& random) {
  static const char* const kWords[] = {"functions.f",       "json", "x",    "browser.search", "a-b_c",
                                       "\xc3\xa9t\xc3\xa9", "17",   "<|x|>"};
  return kWords[random.integer(0, 7)];
}

std::string content(Random& random) {
  static const char* const kParts[] = {"<|end|>",
                                       "<|start|>assistant",
                                       " to=x",
                                       "final",
                                       "\n",
                                       " ",
                                       "7",
                                       "42",
                                       "{\"a\": 1}",
                                       "\xf0\x9f\x91\x8d",
                                       "\xe3\x81\x82",
                                       "assistant",
                                       "words and 9 words",
                                       "<|call|>",
                                       ""};
  std::string out;
  for (int64_t n = random.integer(0, 6); n > 0; --n) out += kParts[random.integer(0, 14)];
  return out;
}

Message random_message(Random& random) {
  Message m;
  m.role = static_cast<ChatRole>(random.integer(0, 4));
  if (m.role == ChatRole::kTool) m.name = word(random);
  if (random.integer(0, 1)) m.channel = random.integer(0, 3) ? "final" : word(random);
  if (random.integer(0, 1)) m.recipient = word(random);
  if (random.integer(0, 1)) m.content_type = word(random);
  m.content = content(random);
  return m;
}

TEST(HarmonyParser, ReadsBackWhatWasRendered) {
  Random random(11);
  for (int i = 0; i < 3000; ++i) {
    std::vector<Message> messages;
    std::vector<int32_t> ids;
    for (int64_t n = random.integer(0, 4); n > 0; --n) {
      messages.push_back(random_message(random));
      const Status status = harmony().append(messages.back(), &ids);
      ASSERT_TRUE(status.ok()) << status.message;
    }
    const auto parsed = parse(ids, Begin::kMessage);
    ASSERT_EQ(parsed.messages.size(), messages.size());
    for (size_t k = 0; k < messages.size(); ++k) {
      EXPECT_EQ(shown(parsed.messages[k].message), shown(messages[k]));
      const bool is_call = messages[k].role == ChatRole::kAssistant && !messages[k].recipient.empty();
      EXPECT_EQ(parsed.messages[k].end, is_call ? HarmonyEnd::kCall : HarmonyEnd::kEnd);
    }
    EXPECT_EQ(parsed.recovered, "");
  }
}

void mutate(std::vector<int32_t>& ids, Random& random) {
  const auto special = [&] {
    static const char* const kNames[] = {"<|start|>",     "<|end|>",    "<|message|>", "<|channel|>",
                                         "<|constrain|>", "<|return|>", "<|call|>",    "<|endoftext|>"};
    return *harmony().tokenizer().id_of(kNames[random.integer(0, 7)]);
  };
  for (int64_t n = random.integer(0, 8); n > 0 && !ids.empty(); --n) {
    const int64_t last = static_cast<int64_t>(ids.size()) - 1;
    const auto at = ids.begin() + random.integer(0, last);
    switch (random.integer(0, 5)) {
      case 0:
        ids.erase(at);
        break;
      case 1:
        ids.insert(at, special());
        break;
      case 2:
        std::swap(*at, ids[static_cast<size_t>(random.integer(0, last))]);
        break;
      case 3:
        ids.erase(at, ids.end());
        break;
      case 4:
        ids.insert(at, static_cast<int32_t>(random.integer(-1, harmony().tokenizer().vocab_size())));
        break;
      default:
        for (size_t i = ids.size() - 1; i > 0; --i)
          if (random.integer(0, 9) == 0)
            std::swap(ids[i], ids[static_cast<size_t>(random.integer(0, static_cast<int64_t>(i)))]);
    }
  }
}

std::string digits_of(std::string_view text) {
  std::string out;
  std::copy_if(text.begin(), text.end(), std::back_inserter(out),
               [](char c) { return c >= '0' && c <= '9'; });
  std::sort(out.begin(), out.end());
  return out;
}

// The parser's own notes contain no digits, so digits can be counted: none is lost or reported twice.
TEST(HarmonyParser, NeverLosesTextWhateverTheTokens) {
  Random random(12);
  for (int i = 0; i < 20000; ++i) {
    std::vector<int32_t> ids;
    for (int64_t n = random.integer(0, 4); n > 0; --n)
      ASSERT_TRUE(harmony().append(random_message(random), &ids).ok());
    mutate(ids, random);
    const auto parsed = parse(ids, random.integer(0, 1) ? Begin::kMessage : Begin::kAssistant);
    std::string out = parsed.recovered;
    for (const ParsedMessage& m : parsed.messages) out += shown(m.message) + m.recovered;
    EXPECT_EQ(digits_of(out), digits_of(harmony().tokenizer().decode(ids, SpecialOutput::kSkip)))
        << harmony().tokenizer().decode(ids) << "\n"
        << out;
  }
}

}  // namespace
}  // namespace sluice
