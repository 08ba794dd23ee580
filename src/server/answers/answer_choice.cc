#include "server/answers/answer_choice.h"

#include <algorithm>

#include "base/json.h"
#include "base/utf8.h"

namespace sluice {

namespace {

constexpr std::string_view kReplacement = "\ufffd";

int64_t characters_in(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
}

}  // namespace

using Kind = AnswerPiece::Kind;

AnswerChoice::AnswerChoice(const ChatFormat& format, const ApiRequest& request)
    : format_(format),
      tokenizer_(format.tokenizer()),
      show_reasoning_(request.include_reasoning),
      offers_tools_(request.tools.offered()),
      wants_logprobs_(request.sampling.logprobs.has_value()),
      only_echoes_(request.sampling.max_tokens == 0),
      continues_(request.end == PromptEnd::kOpenMessage),
      decoder_(tokenizer_),
      stop_(request.stop) {
  if (request.kind != ApiKind::kCompletion)
    parser_ = format.parser(
        {.thinking = request.thinking, .calls = request.tools.offered(), .continues = continues_});
}

void AnswerChoice::begin_with(const std::vector<int32_t>& tokens) {
  for (const int32_t id : tokens) read(parser_->push(id));
}

void AnswerChoice::echo(const std::string& text, const std::vector<int32_t>& tokens,
                        const SpecialEnds& ends) {
  shown_bytes_ = text_bytes_ = std::ssize(text);
  text_characters_ = characters_in(text);
  add(Kind::kText, text);
  if (wants_logprobs_) echoed_ = tokens;
  text_begins_ = ends.before.size(), text_ends_ = tokens.size() - ends.after.size();
}

// `scores` has an entry for each token of the prompt except the first, which has no log probability.
void AnswerChoice::list_echoed(const std::vector<TokenScore>& scores) {
  int64_t bytes = 0, characters = 0;
  Utf8Stream text;
  for (size_t i = 0; i < echoed_.size(); ++i) {
    const std::string_view piece = tokenizer_.piece(echoed_[i]);
    // A token within a character begins where the character begins.
    TextToken t{.id = echoed_[i], .offset = bytes, .characters = characters + text.is_cut_by(piece)};
    if (i > 0 && i <= scores.size())
      t.logprob = scores[i - 1].logprob, t.top_logprobs = scores[i - 1].top_logprobs;
    new_.front().tokens.push_back(std::move(t));
    if (i < text_begins_ || i >= text_ends_) continue;
    bytes += std::ssize(piece);
    characters += characters_in(text.push(piece));
  }
}

void AnswerChoice::hold(const GeneratedToken& token) {
  const bool cuts = decoder_.is_cut_by(token.id);
  held_.push_back({.id = token.id,
                   .logprob = token.logprob,
                   .top_logprobs = token.top_logprobs,
                   .offset = text_bytes_ + (cuts ? std::ssize(kReplacement) : 0),
                   .characters = text_characters_ + cuts});
}

// The parser read some tokens as a header, and now reports that their text was content: `text`, or a text that contains
// it. Moves the tokens of this content from header_ to held_.
void AnswerChoice::hold_header(const std::string& text) {
  std::string bytes, all;  // the tokens' text, in `all` with invalid UTF-8 replaced, as in `text`
  std::vector<size_t> token_of_byte, token_of;
  for (size_t t = 0; t < header_.size(); ++t) {
    bytes += tokenizer_.decode({&header_[t].id, 1});
    token_of_byte.resize(bytes.size(), t);
  }
  for (size_t at = 0; at < bytes.size();) {
    const auto length = static_cast<size_t>(utf8_step(std::string_view(bytes).substr(at)).bytes);
    const std::string character = valid_utf8(std::string_view(bytes).substr(at, length));
    for (size_t i = 0; i < character.size(); ++i)
      token_of.push_back(token_of_byte[at + std::min(i, length - 1)]);
    all += character;
    at += length;
  }
  constexpr size_t kNone = std::string::npos;
  std::vector<size_t> first(header_.size(),
                            kNone);  // by token: the position in `text` where the token begins
  const auto place = [&](size_t in_all, size_t in_text) {
    size_t& at = first[token_of[in_all]];
    at = std::min(at, in_text);
  };
  if (const size_t found = all.rfind(text); found != kNone) {
    for (size_t i = 0; i < text.size(); ++i) place(found + i, i);
  } else {
    // Header words may stand between the parts of `text` in `all`. So this matches equal bytes, from the end to the start.
    for (size_t i = text.size(), left = all.size(); i-- > 0 && left > 0;) {
      const size_t same = all.rfind(text[i], left - 1);
      const bool skipped =
          same == kNone || (text[i] == ' ' && same != left - 1);  // a blank that the parser put
                                                                  // between two parts of the content
      if (skipped) continue;
      place(same, i);
      left = same;
    }
  }
  for (size_t t = 0; t < header_.size(); ++t) {
    if (first[t] == kNone) continue;
    header_[t].offset = text_bytes_ + static_cast<int64_t>(first[t]);
    header_[t].characters = text_characters_ + characters_in(std::string_view(text).substr(0, first[t]));
    held_.push_back(std::move(header_[t]));
  }
}

void AnswerChoice::add(Kind kind, const std::string& text) {
  const bool goes_on = !new_.empty() && new_.back().kind == kind && kind != Kind::kCall;
  if (!goes_on) new_.push_back({.kind = kind, .text = {}});
  new_.back().text += text;
}

// Emits text that cannot be part of a stop string, with the tokens that begin in the text.
void AnswerChoice::show(const std::string& text) {
  shown_bytes_ += std::ssize(text);
  std::vector<TextToken> tokens;
  while (!held_.empty() && held_.front().offset < shown_bytes_) {
    tokens.push_back(std::move(held_.front()));
    held_.pop_front();
  }
  if (text.empty() && tokens.empty()) return;
  add(Kind::kText, text);
  auto& all = new_.back().tokens;
  all.insert(all.end(), std::make_move_iterator(tokens.begin()), std::make_move_iterator(tokens.end()));
}

void AnswerChoice::add_text(const std::string& text) {
  text_bytes_ += std::ssize(text);
  text_characters_ += characters_in(text);
  show(stop_.push(text));
}

void AnswerChoice::read(const std::vector<AnswerEvent>& events, const GeneratedToken* word) {
  for (size_t i = 0; i < events.size(); ++i) {
    const AnswerEvent& e = events[i];
    within_ = e.kind != AnswerEvent::Kind::kEnd;
    continues_ = false;
    if (e.kind == AnswerEvent::Kind::kHeader) {
      const std::string function = offers_tools_ ? called_function(e.message.recipient) : "";
      kind_ = !function.empty() ? Kind::kArguments : is_reasoning(e.message) ? Kind::kReasoning : Kind::kText;
      if (!function.empty()) add(Kind::kCall, function);
      called_ = called_ || !function.empty();
      // If a text event follows in the same list, its text comes from the tokens of the header: no token was read in between.
      const bool has_text = i + 1 < events.size() && events[i + 1].kind == AnswerEvent::Kind::kText;
      if (kind_ == Kind::kText && has_text) {
        hold_header(events[i + 1].text);
      } else if (word && kind_ == Kind::kText && wants_logprobs_) {
        hold(*word);
      }
      header_.clear();
      if (word && kind_ == Kind::kReasoning) ++reasoning_tokens_;
      word = nullptr;
    }
    if (e.kind != AnswerEvent::Kind::kText) continue;
    if (kind_ == Kind::kText)
      add_text(e.text);
    else if (kind_ != Kind::kReasoning || show_reasoning_)
      add(kind_, e.text);
  }
}

void AnswerChoice::push(const GeneratedToken& token) {
  if (tokens_++ == 0) list_echoed(token.prompt);
  if (only_echoes_) return end(FinishReason::kLength);
  const bool is_special = parser_ ? format_.is_frame(token.id) : tokenizer_.is_special(token.id);
  if (is_special) continues_ = false;
  // After an echoed prompt every token is listed, even without text, because benchmark tools find a continuation's tokens by counting.
  const bool lists_all = !echoed_.empty();
  if (lists_all) hold(token);
  // The text of a stop token is not part of the answer, so the token is skipped, unless it is a special token, which the parser needs.
  if (token.finish != FinishReason::kStop || is_special) {
    const bool is_content = !is_special && (within_ || continues_ || !parser_);
    reasoning_tokens_ += is_content && kind_ == Kind::kReasoning;
    if (wants_logprobs_ && !lists_all && is_content && kind_ == Kind::kText) hold(token);
    if (wants_logprobs_ && parser_ && !is_special && !is_content)
      header_.push_back({.id = token.id, .logprob = token.logprob, .top_logprobs = token.top_logprobs});
    if (parser_)
      read(parser_->push(token.id), is_special || is_content ? nullptr : &token);
    else
      add_text(decoder_.push(token.id));
  }
  if (token.finish == FinishReason::kStop && !stop_.found()) stop_token_ = token.id;
  if (token.finish != FinishReason::kNone || stop_.found()) end(token.finish);
}

void AnswerChoice::end(FinishReason finish) {
  done_ = true;
  if (parser_) {
    ParsedAnswer rest = parser_->finish();
    read(rest.events);
    messages_ = std::move(rest.messages);
    // A model may end the answer right after a call, without the token that ends the call. Such a call is complete.
    cut_in_call_ = called_ && kind_ == Kind::kArguments && !messages_.empty() &&
                   messages_.back().end == MessageEnd::kNothing &&
                   !parse_json(messages_.back().message.content, "arguments").ok();
  } else if (!stop_.found()) {
    add_text(decoder_.finish());
  }
  // Looked at last, because the end of the text, which only comes here, may complete a stop string.
  finish_ = stop_.found() ? FinishReason::kStop : finish;
  if (stop_.found()) return void(stop_token_.reset());
  show(stop_.flush());
  if (held_.empty()) return;  // tokens without text at the end
  shown_bytes_ = held_.back().offset + 1;
  show("");
}

std::vector<AnswerPiece> AnswerChoice::take() {
  for (const AnswerPiece& piece : new_) {
    if (said_.empty() || said_.back().kind != piece.kind || piece.kind == Kind::kCall)
      said_.push_back({.kind = piece.kind, .text = {}});
    said_.back().text += piece.text;
    said_.back().tokens.insert(said_.back().tokens.end(), piece.tokens.begin(), piece.tokens.end());
  }
  return std::exchange(new_, {});
}

}  // namespace sluice
