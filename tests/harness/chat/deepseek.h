// A small tokenizer with DeepSeek's tokens, for tests of its chat formats.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "text/deepseek/deepseek.h"

namespace sluice {

inline const Tokenizer& deepseek_tokenizer() {
  static const Tokenizer t =
      Tokenizer::load(SLUICE_SOURCE_DIR "/tests/data/tokenizer/pattern_deepseek.json").value();
  return t;
}
// The tokenizer lives as long as the program.
inline const DeepSeek& deepseek(DeepSeekModel model) {
  static const DeepSeek all[] = {DeepSeek::from(deepseek_tokenizer(), DeepSeekModel::kV3).value(),
                                 DeepSeek::from(deepseek_tokenizer(), DeepSeekModel::kR1).value(),
                                 DeepSeek::from(deepseek_tokenizer(), DeepSeekModel::kR1Opened).value(),
                                 DeepSeek::from(deepseek_tokenizer(), DeepSeekModel::kV31).value()};
  return all[static_cast<size_t>(model)];
}
inline std::vector<int32_t> deepseek_ids(std::string_view text) {
  std::vector<int32_t> ids;
  EXPECT_TRUE(deepseek_tokenizer().encode(text, Specials::kParse, &ids).ok());
  return ids;
}

}  // namespace sluice
