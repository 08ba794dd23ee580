// A grammar compiler for the shipped model's tokens, and helpers to query it.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/random.h"
#include "grammar/grammar.h"

namespace sluice {

constexpr GrammarKind kSchema = GrammarKind::kJsonSchema;

inline Tokenizer shipped_tokenizer() {
  auto tokenizer = Tokenizer::load(SLUICE_SOURCE_DIR "/models/sluice-16e-tiny/tokenizer.json");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message;
  return std::move(tokenizer).value();
}

class GrammarTest : public ::testing::Test {
 protected:
  const Tokenizer tokenizer_ = shipped_tokenizer();
  const int64_t vocab_ =
      tokenizer_.vocab_size() + 37;  // as in models: more logits than tokens, and a partial mask word
  const int32_t end_ = *tokenizer_.id_of("<|return|>");
  GrammarCompiler compiler_{tokenizer_, vocab_, end_};

  std::vector<int32_t> allowed(GrammarMatcher* matcher) const {
    std::vector<uint32_t> bits(static_cast<size_t>((vocab_ + 31) / 32), 0x5a5a5a5a);
    const Status status = matcher->allowed(bits);
    EXPECT_TRUE(status.ok()) << status.message;
    std::vector<int32_t> out;
    for (size_t id = 0; id < bits.size() * 32; ++id)
      if (bits[id / 32] >> (id % 32) & 1) out.push_back(static_cast<int32_t>(id));
    for (const int32_t id : out) {
      EXPECT_LT(id, tokenizer_.vocab_size()) << "a padding logit is allowed";
      EXPECT_TRUE(id == end_ || !tokenizer_.is_special(id)) << tokenizer_.piece(id);
    }
    EXPECT_FALSE(out.empty());
    return out;
  }
  Grammar grammar(GrammarKind kind, const std::string& text) {
    auto out = compiler_.compile({kind, text});
    EXPECT_TRUE(out.ok()) << out.status().message;
    return std::move(out).value();
  }
  Grammar one_of(const std::vector<std::string>& words) {
    auto out = compiler_.compile(one_of_strings(words));
    EXPECT_TRUE(out.ok()) << out.status().message;
    return std::move(out).value();
  }
  // A text sampled from the allowed tokens; none if it has not ended after `most` tokens.
  std::optional<std::string> drawn(const Grammar& grammar, uint64_t seed, int tokens_max = 400) {
    GrammarMatcher matcher(grammar);
    Random random(seed);
    std::string text;
    for (int i = 0; i < tokens_max; ++i) {
      const auto ids = allowed(&matcher);
      // Ends as soon as the end is allowed, so that texts end.
      const bool ends = std::find(ids.begin(), ids.end(), end_) != ids.end();
      const int32_t id = ends && random.integer(0, 2) == 0
                             ? end_
                             : ids[static_cast<size_t>(random.integer(0, std::ssize(ids) - 1))];
      EXPECT_TRUE(matcher.accept(id).ok());
      if (id == end_) return text;
      text += tokenizer_.piece(id);
    }
    return {};
  }
  bool matches(const Grammar& grammar, std::string_view text) {
    std::vector<int32_t> ids;
    EXPECT_TRUE(tokenizer_.encode(text, Specials::kAsText, &ids).ok());
    ids.push_back(end_);
    GrammarMatcher matcher(grammar);
    for (const int32_t id : ids) {
      const auto may = allowed(&matcher);
      const bool listed = std::find(may.begin(), may.end(), id) != may.end();
      EXPECT_EQ(matcher.accept(id).ok(), listed) << text << " at '" << tokenizer_.piece(id) << "' " << id;
      if (!listed) return false;
    }
    EXPECT_TRUE(matcher.done());
    return true;
  }
  std::string refusal(GrammarKind kind, const std::string& text) {
    const auto out = compiler_.compile({kind, text});
    EXPECT_FALSE(out.ok()) << text;
    return out.status().message;
  }
};

}  // namespace sluice
