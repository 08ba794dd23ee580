#include <algorithm>
#include <initializer_list>
#include <unordered_set>

#include "base/json.h"
#include "text/tokenizer/data.h"
#include "text/tokenizer/json_rules.h"
#include "text/tokenizer/post_processor.h"

namespace sluice {
namespace {

using Data = Tokenizer::Data;
using Kind = Data::Kind;

constexpr int64_t kFileBytesMax = int64_t{256} << 20;
constexpr int64_t kIdMax =
    (int64_t{1} << 22) - 1;  // ids index an array; the largest known vocabulary has 262,144
// of an added token, because encode() searches for them at each byte of a text
constexpr size_t kAddedBytesMax = 1024;
constexpr size_t kStepsMax = 16;  // of a pre_tokenizer, because each step splits the whole text again

Status corrupt(std::string message) { return {Code::kCorrupt, std::move(message)}; }

// GPT-2's letters for bytes. A printable byte has the letter with the same code; the other bytes have U+0100 and up.
// Source: openai/gpt-2, src/encoder.py, bytes_to_unicode.
class ByteLetters {
 public:
  ByteLetters() {
    byte_of_.fill(-1);
    int32_t next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      letter_of_[static_cast<size_t>(b)] = static_cast<char32_t>(itself ? b : next++);
      byte_of_[letter_of_[static_cast<size_t>(b)]] = static_cast<int16_t>(b);
    }
  }
  char32_t letter(int byte) const { return letter_of_[static_cast<size_t>(byte)]; }
  // Appends the bytes that the letters of `word` (valid UTF-8) represent. If one of the letters represents no byte, appends the bytes of
  // `word` itself and returns false.
  bool spell(std::string_view word, std::string* out) const {
    const size_t before = out->size();
    for (std::string_view rest = word; !rest.empty();) {
      const Utf8Step step = utf8_step(rest);
      const int byte = step.code_point < byte_of_.size() ? byte_of_[step.code_point] : -1;
      if (byte < 0) {
        out->resize(before);
        out->append(word);
        return false;
      }
      out->push_back(static_cast<char>(byte));
      rest.remove_prefix(static_cast<size_t>(step.bytes));
    }
    return true;
  }

 private:
  std::array<char32_t, 256> letter_of_{};
  std::array<int16_t, 324> byte_of_;  // 256 + the 68 non-printable bytes
};

class TokenizerReader {
 public:
  TokenizerReader(const Json& document, std::string_view what) : root_(document, std::string(what)) {}

  Result<std::shared_ptr<const Data>> read() {
    SLUICE_TRY(only_keys(root_, {"version", "truncation", "padding", "added_tokens", "normalizer",
                                 "pre_tokenizer", "post_processor", "decoder", "model"}));
    SLUICE_TRY(read_version());
    SLUICE_TRY(read_normalizer());
    SLUICE_TRY(read_batching());
    const auto model = root_.at("model");
    if (!model.ok()) return model.status();
    SLUICE_TRY(read_model(model.value()));
    SLUICE_TRY(read_vocab(model.value()));
    SLUICE_TRY(read_added());
    SLUICE_TRY(read_byte_ids(model.value()));
    SLUICE_TRY(read_merges(model.value()));
    SLUICE_TRY(read_pre_tokenizer());
    SLUICE_TRY(read_decoder());
    SLUICE_TRY(read_ends());
    if (ignore_merges_) index_whole_words();
    return std::shared_ptr<const Data>(std::move(data_));
  }

 private:
  // Hugging Face tokenizers refuse another version, too.
  Status read_version() const {
    if (!root_.value().contains("version")) return {};
    const auto version = root_.string("version");
    if (!version.ok()) return version.status();
    return version.value() == "1.0" ? Status{} : not_supported(root_.at("version").value(), "\"1.0\"");
  }

  // Checks the keys of truncation and padding, which are ignored, as transformers does by default.
  Status read_batching() {
    const auto known = [&](const char* section, std::initializer_list<std::string_view> keys) -> Status {
      return root_.has(section) ? only_keys(root_.at(section).value(), keys) : Status{};
    };
    SLUICE_TRY(known("truncation", {"direction", "max_length", "strategy", "stride"}));
    return known("padding",
                 {"strategy", "direction", "pad_to_multiple_of", "pad_id", "pad_type_id", "pad_token"});
  }

  Status read_normalizer() {
    if (!root_.has("normalizer")) return {};
    const JsonAt normalizer = root_.at("normalizer").value();
    const auto type = type_of(normalizer);
    if (!type.ok()) return type.status();
    if (type.value() == "Sequence") return read_empty_sequence(normalizer);
    SLUICE_TRY(only_type(normalizer, "NFC"));
    SLUICE_TRY(only_keys(normalizer, {"type"}));
    data_->nfc = true;
    return {};
  }

  // Accepts an empty Sequence, which DeepSeek's files have as their normalizer.
  Status read_empty_sequence(const JsonAt& normalizer) {
    SLUICE_TRY(only_keys(normalizer, {"type", "normalizers"}));
    const auto list = normalizer.at("normalizers");
    if (!list.ok()) return list.status();
    const auto steps = list.value().items();
    if (!steps.ok()) return steps.status();
    return steps.value().empty() ? Status{} : not_supported(list.value(), "an empty array");
  }

  Status read_model(const JsonAt& model) {
    SLUICE_TRY(only_type(model, "BPE"));
    SLUICE_TRY(
        only_keys(model, {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                          "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"}));
    for (const char* key : {"dropout", "unk_token"}) SLUICE_TRY(only_neutral(model, key, nullptr));
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      SLUICE_TRY(only_neutral(model, key, ""));
    SLUICE_TRY(only_neutral(model, "byte_fallback", false));
    const auto fuse = model.boolean("fuse_unk", false);  // has no effect, because every byte has a token
    if (!fuse.ok()) return fuse.status();
    const auto ignore = model.boolean("ignore_merges", false);
    if (!ignore.ok()) return ignore.status();
    ignore_merges_ = ignore.value();
    return {};
  }

  // Makes the last `size` bytes of data_->bytes the token `id`.
  bool place(int64_t id, size_t size, Kind kind) {
    if (static_cast<size_t>(id) >= data_->pieces.size()) data_->pieces.resize(static_cast<size_t>(id) + 1);
    Data::Piece& piece = data_->pieces[static_cast<size_t>(id)];
    if (piece.kind != Kind::kNone) return false;
    piece = {static_cast<int64_t>(data_->bytes.size() - size), static_cast<int32_t>(size), kind};
    return true;
  }

  Status read_vocab(const JsonAt& model) {
    const auto vocab = model.at("vocab");
    if (!vocab.ok()) return vocab.status();
    SLUICE_TRY(vocab.value().need_object());
    const auto& words = vocab.value().value().get_ref<const Json::object_t&>();
    ids_.reserve(words.size());
    data_->pieces.reserve(words.size() + 1024);
    for (const auto& [word, number] : words) {
      // Formats the path of a number only if it is wrong, because there are hundreds of thousands of numbers.
      const bool fits = number.is_number_unsigned() && number.get<uint64_t>() <= kIdMax;
      if (!fits) {
        const auto at = JsonAt(number, vocab.value().where() + "." + word).integer(0, kIdMax);
        if (!at.ok()) return at.status();
      }
      const int64_t id = number.get<int64_t>();
      const size_t before = data_->bytes.size();
      const bool spelled = letters_.spell(word, &data_->bytes);
      if (!place(id, data_->bytes.size() - before, Kind::kWord))
        return corrupt(vocab.value().where() + "." + word + ": wanted a unique id, found " +
                       std::to_string(id) + ", which belongs to another word");
      ids_.emplace(word, static_cast<int32_t>(id));
      if (spelled && ignore_merges_) spelled_.push_back(static_cast<int32_t>(id));
    }
    return {};
  }

  Status read_added() {
    if (!root_.has("added_tokens")) return {};
    const auto tokens = root_.at("added_tokens").value().items();
    if (!tokens.ok()) return tokens.status();
    for (const JsonAt& token : tokens.value()) SLUICE_TRY(read_one_added(token));
    auto& added = data_->added;
    std::sort(added.begin(), added.end(), [](const auto& a, const auto& b) { return a.content < b.content; });
    for (size_t i = 1; i < added.size(); ++i)
      if (added[i - 1].content == added[i].content)
        return corrupt(root_.where() + ": added_tokens: wanted unique contents, found '" + added[i].content +
                       "' twice");
    SLUICE_TRY(check_apart());
    for (const auto& a : added) data_->starts_added[static_cast<uint8_t>(a.content[0])] = true;
    return {};
  }

  // Hugging Face tokenizers search tokens with "normalized" only between the other added tokens, and Sluice searches all added tokens at once.
  // The results are the same unless a token with "normalized" and another added token can overlap, which is rejected here.
  Status check_apart() const {
    for (const auto& normal : data_->added) {
      if (!normalized_.contains(normal.id)) continue;
      if (data_->nfc)
        return unsupported(root_.where() +
                           ": added_tokens: wanted no normalized token together with a normalizer, found '" +
                           normal.content + "'");
      for (const auto& other : data_->added)
        if (!normalized_.contains(other.id) && may_touch(normal.content, other.content))
          return unsupported(root_.where() +
                             ": added_tokens: wanted normalized tokens that cannot overlap others, found '" +
                             normal.content + "', which can overlap '" + other.content + "'");
    }
    return {};
  }

  // Whether an occurrence of `a` and an occurrence of `b` can overlap.
  static bool may_touch(std::string_view a, std::string_view b) {
    if (a.find(b) != a.npos || b.find(a) != b.npos) return true;
    for (size_t n = 1; n < std::min(a.size(), b.size()); ++n)
      if (a.ends_with(b.substr(0, n)) || b.ends_with(a.substr(0, n))) return true;
    return false;
  }

  Status read_one_added(const JsonAt& token) {
    SLUICE_TRY(
        only_keys(token, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
    const auto id = token.integer("id", 0, kIdMax);
    if (!id.ok()) return id.status();
    const auto content = token.string("content");
    if (!content.ok()) return content.status();
    const size_t size = content.value().size();
    if (size == 0 || size > kAddedBytesMax)
      return not_supported(token.at("content").value(), "1 to " + std::to_string(kAddedBytesMax) + " bytes");
    for (const char* key : {"single_word", "lstrip", "rstrip"}) SLUICE_TRY(only_neutral(token, key, false));
    const auto normalized = token.boolean("normalized", false);
    if (!normalized.ok()) return normalized.status();
    if (normalized.value()) normalized_.insert(static_cast<int32_t>(id.value()));
    const auto special = token.boolean("special", false);
    if (!special.ok()) return special.status();
    const Kind kind = special.value() ? Kind::kSpecial : Kind::kAdded;
    const auto word = ids_.find(content.value());
    if (word != ids_.end() && word->second != id.value())
      return corrupt(token.where() + ".id: wanted " + std::to_string(word->second) +
                     ", which model.vocab gives '" + content.value() + "', found " +
                     std::to_string(id.value()));
    if (word != ids_.end()) {
      // The word must be the added token's text. Otherwise the id would have two texts, and decoding would be ambiguous.
      if (data_->piece(word->second) != content.value())
        return unsupported(token.where() +
                           ".content: wanted a word of model.vocab that decodes to itself, found '" +
                           content.value() + "'");
      data_->pieces[static_cast<size_t>(id.value())].kind = Kind::kNone;
    }
    data_->bytes += content.value();
    if (!place(id.value(), size, kind))
      return corrupt(token.where() + ".id: wanted a unique id, found " + std::to_string(id.value()) +
                     ", which belongs to another token");
    data_->added.push_back({content.value(), static_cast<int32_t>(id.value()), kind});
    return {};
  }

  // Every byte needs a word, so that every text can be encoded. The word must not be a special token, which any text with the byte would produce.
  Status read_byte_ids(const JsonAt& model) {
    for (int byte = 0; byte < 256; ++byte) {
      std::string letter;
      append_utf8(letters_.letter(byte), &letter);
      const auto word = ids_.find(letter);
      if (word == ids_.end())
        return unsupported(model.where() + ".vocab: wanted a word for each byte, found none ('" + letter +
                           "') for byte " + std::to_string(byte));
      if (data_->kind(word->second) == Kind::kSpecial)
        return unsupported(
            model.where() +
            ".vocab: wanted a word that is not special for each byte, found the special token '" + letter +
            "'");
      data_->byte_ids[static_cast<size_t>(byte)] = word->second;
    }
    return {};
  }

  // Splits a merge, "a b" or ["a", "b"], into its two words; false if it has neither form.
  static bool halves(const Json& merge, std::string_view* left, std::string_view* right) {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      *left = merge[0].get_ref<const std::string&>();
      *right = merge[1].get_ref<const std::string&>();
      return true;
    }
    if (!merge.is_string()) return false;
    const std::string_view line = merge.get_ref<const std::string&>();
    const size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) return false;
    *left = line.substr(0, space);
    *right = line.substr(space + 1);
    return true;
  }

  Status read_merges(const JsonAt& model) {
    const auto list = model.at("merges");
    if (!list.ok()) return list.status();
    if (!list.value().value().is_array()) return list.value().wrong("an array");
    const auto& items = list.value().value().get_ref<const Json::array_t&>();
    std::vector<Merges::Merge> merges;
    merges.reserve(items.size());
    std::string joined;
    const auto wrong = [&](size_t i, std::string_view wanted) {
      return JsonAt(items[i], list.value().where() + "[" + std::to_string(i) + "]").wrong(wanted);
    };
    for (size_t i = 0; i < items.size(); ++i) {
      std::string_view left, right;
      if (!halves(items[i], &left, &right)) return wrong(i, "\"a b\" or [\"a\", \"b\"]");
      joined.assign(left).append(right);
      const auto l = ids_.find(left), r = ids_.find(right), both = ids_.find(joined);
      if (l == ids_.end() || r == ids_.end() || both == ids_.end())
        return corrupt(list.value().where() + "[" + std::to_string(i) +
                       "]: wanted two words of model.vocab whose concatenation is also one, found '" +
                       std::string(left) + "' and '" + std::string(right) + "'");
      if (data_->kind(both->second) == Kind::kSpecial)
        return unsupported(list.value().where() + "[" + std::to_string(i) +
                           "]: wanted a word that is not special, found the special token '" + joined + "'");
      merges.push_back({l->second, r->second, both->second, static_cast<int32_t>(i)});
    }
    int64_t twice = 0;
    if (!data_->merges.fill(std::move(merges), static_cast<int64_t>(data_->pieces.size()), &twice))
      return wrong(static_cast<size_t>(twice), "each pair once");
    return {};
  }

  Status read_pre_tokenizer() {
    const auto top = root_.at("pre_tokenizer");
    if (!top.ok()) return top.status();
    const auto type = type_of(top.value());
    if (!type.ok()) return type.status();
    if (type.value() == "ByteLevel") return read_byte_level(top.value());
    if (type.value() != "Sequence")
      return not_supported(top.value().at("type").value(), "\"ByteLevel\" or \"Sequence\"");
    SLUICE_TRY(only_keys(top.value(), {"type", "pretokenizers"}));
    const auto list = top.value().at("pretokenizers");
    if (!list.ok()) return list.status();
    const auto steps = list.value().items();
    if (!steps.ok()) return steps.status();
    if (steps.value().empty() || steps.value().size() > kStepsMax)
      return not_supported(list.value(), "1 to " + std::to_string(kStepsMax) + " steps");
    for (size_t i = 0; i + 1 < steps.value().size(); ++i) SLUICE_TRY(read_split(steps.value()[i]));
    return read_byte_level(steps.value().back());
  }

  Status read_byte_level(const JsonAt& step) {
    SLUICE_TRY(only_type(step, "ByteLevel"));
    SLUICE_TRY(only_keys(step, {"type", "add_prefix_space", "trim_offsets", "use_regex"}));
    const auto prefix = step.boolean("add_prefix_space", true);  // default of Hugging Face tokenizers
    if (!prefix.ok()) return prefix.status();
    if (prefix.value()) {
      const auto found = step.at("add_prefix_space");
      return found.ok() ? not_supported(found.value(), "false")
                        : unsupported(step.where() + ".add_prefix_space: wanted false, found no such key");
    }
    const auto use_regex = step.boolean("use_regex", true);
    if (!use_regex.ok()) return use_regex.status();
    return use_regex.value() ? add_pattern(kGpt2Pattern, step.where() + ".use_regex") : Status{};
  }

  Status read_split(const JsonAt& step) {
    SLUICE_TRY(only_type(step, "Split"));
    SLUICE_TRY(only_keys(step, {"type", "pattern", "behavior", "invert"}));
    const auto behavior = step.string("behavior");
    if (!behavior.ok()) return behavior.status();
    if (behavior.value() != "Isolated") return not_supported(step.at("behavior").value(), "\"Isolated\"");
    SLUICE_TRY(only_neutral(step, "invert", false));
    const auto pattern = step.at("pattern");
    if (!pattern.ok()) return pattern.status();
    SLUICE_TRY(only_keys(pattern.value(), {"Regex"}));
    const auto regex = pattern.value().string("Regex");
    if (!regex.ok()) return regex.status();
    return add_pattern(regex.value(), pattern.value().where() + ".Regex");
  }

  Status add_pattern(std::string_view pattern, const std::string& where) {
    auto compiled = SplitPattern::compile(pattern, where);
    if (!compiled.ok()) return compiled.status();
    data_->patterns.push_back(std::move(compiled).value());
    return {};
  }

  Status read_decoder() {
    const auto decoder = root_.at("decoder");
    if (!decoder.ok()) return decoder.status();
    return only_type(decoder.value(), "ByteLevel");  // its flags have no effect on decoding
  }

  Status read_ends() {
    auto ends = read_post_processor(root_, *data_);
    if (!ends.ok()) return ends.status();
    data_->ends = std::move(ends).value();
    return {};
  }

  void index_whole_words() {
    data_->whole_words.reserve(spelled_.size());
    for (const int32_t id : spelled_)
      if (data_->kind(id) == Kind::kWord) data_->whole_words.emplace(data_->piece(id), id);
  }

  JsonAt root_;
  std::shared_ptr<Data> data_ = std::make_shared<Data>();
  ByteLetters letters_;
  bool ignore_merges_ = false;
  std::unordered_map<std::string_view, int32_t>
      ids_;                                 // ids of model.vocab; the keys are views into the document
  std::unordered_set<int32_t> normalized_;  // added tokens with "normalized": true
  std::vector<int32_t> spelled_;            // words whose letters all represent bytes; used for ignore_merges
};

}  // namespace

Result<Tokenizer> Tokenizer::parse(std::string_view json, std::string_view what) {
  const auto document = parse_json(json, what);
  if (!document.ok()) return document.status();
  auto data = TokenizerReader(document.value(), what).read();
  if (!data.ok()) return data.status();
  return Tokenizer(std::move(data).value());
}

Result<Tokenizer> Tokenizer::load(const std::string& path) {
  const auto text = read_file(path, kFileBytesMax);
  if (!text.ok()) return text.status();
  return parse(text.value(), path);
}

}  // namespace sluice
