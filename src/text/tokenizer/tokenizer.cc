#include "text/tokenizer/tokenizer.h"

#include <algorithm>

#include "text/tokenizer/data.h"
#include "text/tokenizer/nfc.h"

namespace sluice {
namespace {

using Data = Tokenizer::Data;

constexpr int64_t kTextBytesMax = int64_t{1} << 30;  // positions within a piece are 32-bit

// The longest added token with which `text` begins, or null. Narrows the range of candidates in the sorted list byte by byte.
const Data::Added* longest_added(const Data& data, std::string_view text) {
  auto first = data.added.begin(), last = data.added.end();
  const Data::Added* longest = nullptr;
  for (size_t n = 0; n < text.size() && first != last; ++n) {
    const auto byte_at = [n](const Data::Added& a) { return static_cast<uint8_t>(a.content[n]); };
    const uint8_t wanted = static_cast<uint8_t>(text[n]);
    first = std::partition_point(first, last,
                                 [&](const auto& a) { return a.content.size() <= n || byte_at(a) < wanted; });
    last = std::partition_point(first, last, [&](const auto& a) { return byte_at(a) == wanted; });
    if (first != last && first->content.size() == n + 1) longest = &*first;
  }
  return longest;
}

// The state of one call of encode().
struct Encoder {
  const Data& data;
  std::vector<int32_t>* ids;
  BpeScratch scratch;
  std::vector<int64_t> ends;

  // Encodes text in which added tokens are not searched.
  Status plain(std::string_view text) {
    if (text.empty()) return {};
    const std::optional<std::string> normal = data.nfc ? nfc(text) : std::nullopt;
    if (normal) text = *normal;
    ends.assign(1, static_cast<int64_t>(text.size()));
    for (const SplitPattern& pattern : data.patterns) SLUICE_TRY(pattern.cut(text, &ends));
    int64_t begin = 0;
    for (const int64_t end : ends) {
      const std::string_view word = text.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
      begin = end;
      if (const auto whole = data.whole_words.find(word); whole != data.whole_words.end())
        ids->push_back(whole->second);
      else
        merge_piece(word, data.byte_ids, data.merges, &scratch, ids);
    }
    return {};
  }

  Status all(std::string_view text, Specials specials) {
    if (specials == Specials::kAllAsText) return plain(text);
    size_t begin = 0;
    for (size_t at = 0; at < text.size();) {
      const Data::Added* found =
          data.starts_added[static_cast<uint8_t>(text[at])] ? longest_added(data, text.substr(at)) : nullptr;
      if (!found) {
        ++at;
        continue;
      }
      // As in Hugging Face tokenizers, an added token that stays text still hides shorter added tokens inside its text.
      const size_t after = at + found->content.size();
      if (specials == Specials::kParse || found->kind != Data::Kind::kSpecial) {
        SLUICE_TRY(plain(text.substr(begin, at - begin)));
        ids->push_back(found->id);
        begin = after;
      }
      at = after;
    }
    return plain(text.substr(begin));
  }
};

void append_piece(const Data& data, int32_t id, SpecialOutput specials, std::string* out) {
  const Data::Kind kind = data.kind(id);
  if (kind == Data::Kind::kNone)
    append_utf8(0xfffd, out);
  else if (kind != Data::Kind::kSpecial || specials == SpecialOutput::kShow)
    *out += data.piece(id);
}

}  // namespace

Status Tokenizer::encode(std::string_view text, Specials specials, std::vector<int32_t>* ids) const {
  if (static_cast<int64_t>(text.size()) > kTextBytesMax)
    return invalid("text: wanted at most " + std::to_string(kTextBytesMax) + " bytes, found " +
                   std::to_string(text.size()));
  const size_t before = ids->size();
  Encoder encoder{.data = *data_, .ids = ids, .scratch = {}, .ends = {}};
  Status status = encoder.all(text, specials);
  if (!status.ok()) ids->resize(before);
  return status;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, SpecialOutput specials) const {
  std::string out;
  for (const int32_t id : ids) append_piece(*data_, id, specials, &out);
  return out;
}

std::optional<int32_t> Tokenizer::id_of_added(std::string_view added) const {
  const auto found = std::lower_bound(data_->added.begin(), data_->added.end(), added,
                                      [](const Data::Added& a, std::string_view s) { return a.content < s; });
  if (found == data_->added.end() || found->content != added) return {};
  return found->id;
}

std::optional<int32_t> Tokenizer::id_of(std::string_view special) const {
  const auto found = id_of_added(special);
  return found && is_special(*found) ? found : std::nullopt;
}

bool Tokenizer::is_special(int32_t id) const { return data_->kind(id) == Data::Kind::kSpecial; }
const SpecialEnds& Tokenizer::special_ends() const { return data_->ends; }
int64_t Tokenizer::vocab_size() const { return static_cast<int64_t>(data_->pieces.size()); }
std::string_view Tokenizer::piece(int32_t id) const { return data_->piece(id); }

std::string StreamDecoder::push(int32_t id) {
  return stream_.push(tokenizer_.decode(std::span(&id, 1), specials_));
}
std::string StreamDecoder::finish() { return stream_.finish(); }
bool StreamDecoder::is_cut_by(int32_t id) const {
  return stream_.is_cut_by(tokenizer_.decode(std::span(&id, 1), specials_));
}

}  // namespace sluice
