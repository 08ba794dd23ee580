#include "text/tokenizer/post_processor.h"

#include "text/tokenizer/json_rules.h"

namespace sluice {
namespace {

constexpr size_t kEndTokensMax = 64, kProcessorsMax = 16;

// Reads TemplateProcessing's "single", the template for one text. Its "pair", the template for two texts, is ignored.
class EndsReader {
 public:
  EndsReader(const JsonAt& post, const Tokenizer::Data& data) : post_(post), data_(data) {}

  Result<SpecialEnds> read() {
    SLUICE_TRY(only_keys(post_, {"type", "single", "pair", "special_tokens"}));
    const auto single = post_.at("single");
    if (!single.ok()) return single.status();
    const auto pieces = single.value().items();
    if (!pieces.ok()) return pieces.status();
    for (const JsonAt& piece : pieces.value()) SLUICE_TRY(read_piece(piece));
    if (!text_)
      return not_supported(single.value(), "a template with the text, {\"Sequence\": {\"id\": \"A\"}}");
    return std::move(ends_);
  }

 private:
  Status read_piece(const JsonAt& piece) {
    SLUICE_TRY(only_keys(piece, {"Sequence", "SpecialToken"}));
    if (piece.value().size() != 1) return not_supported(piece, "a Sequence or a SpecialToken");
    const bool is_text = piece.has("Sequence");
    const auto member = piece.at(is_text ? "Sequence" : "SpecialToken");
    if (!member.ok()) return member.status();
    SLUICE_TRY(only_keys(member.value(), {"id", "type_id"}));
    const auto id = member.value().string("id");
    if (!id.ok()) return id.status();
    if (!is_text) return add_token(member.value().at("id").value(), id.value());
    if (id.value() != "A" || text_) return not_supported(piece, "the text A once");
    text_ = true;
    return {};
  }

  Status add_token(const JsonAt& at, const std::string& name) {
    const auto all = post_.at("special_tokens");
    if (!all.ok()) return all.status();
    SLUICE_TRY(all.value().need_object());
    if (!all.value().has(name)) return at.wrong("a name of special_tokens");
    const auto token = all.value().at(name);
    if (!token.ok()) return token.status();
    SLUICE_TRY(only_keys(token.value(), {"id", "ids", "tokens"}));
    const auto ids = token.value().at("ids");
    if (!ids.ok()) return ids.status();
    const auto each = ids.value().items();
    if (!each.ok()) return each.status();
    for (const JsonAt& one : each.value()) {
      const auto id = one.integer(0, INT32_MAX);
      if (!id.ok()) return id.status();
      if (data_.kind(static_cast<int32_t>(id.value())) == Tokenizer::Data::Kind::kNone)
        return one.wrong("the id of a token");
      (text_ ? ends_.after : ends_.before).push_back(static_cast<int32_t>(id.value()));
    }
    if (ends_.before.size() + ends_.after.size() > kEndTokensMax)
      return not_supported(at, "at most " + std::to_string(kEndTokensMax) + " tokens around a text");
    return {};
  }

  const JsonAt& post_;
  const Tokenizer::Data& data_;
  SpecialEnds ends_;
  bool text_ = false;
};

}  // namespace

Result<SpecialEnds> read_post_processor(const JsonAt& root, const Tokenizer::Data& data) {
  if (!root.has("post_processor")) return SpecialEnds{};
  const JsonAt post = root.at("post_processor").value();
  const auto type = type_of(post);
  if (!type.ok()) return type.status();
  if (type.value() == "ByteLevel") return SpecialEnds{};  // it changes only offsets, not tokens
  if (type.value() == "TemplateProcessing") return EndsReader(post, data).read();
  if (type.value() != "Sequence")
    return not_supported(post.at("type").value(), "\"ByteLevel\", \"TemplateProcessing\" or \"Sequence\"");
  SLUICE_TRY(only_keys(post, {"type", "processors"}));
  const auto list = post.at("processors");
  if (!list.ok()) return list.status();
  const auto steps = list.value().items();
  if (!steps.ok()) return steps.status();
  if (steps.value().size() > kProcessorsMax)
    return not_supported(list.value(), "at most " + std::to_string(kProcessorsMax) + " processors");
  SpecialEnds out;
  bool has_template = false;
  for (const JsonAt& step : steps.value()) {
    const auto kind = type_of(step);
    if (!kind.ok()) return kind.status();
    if (kind.value() == "ByteLevel") continue;
    if (kind.value() != "TemplateProcessing" || has_template)
      return not_supported(step.at("type").value(), has_template ? "only \"ByteLevel\" next to the template"
                                                                 : "\"ByteLevel\" or \"TemplateProcessing\"");
    auto ends = EndsReader(step, data).read();
    if (!ends.ok()) return ends.status();
    out = std::move(ends).value();
    has_template = true;
  }
  return out;
}

}  // namespace sluice
