// A small tokenizer with Qwen's special tokens, for tests of its chat format.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/json.h"
#include "text/chatml.h"

namespace sluice {

inline const Tokenizer& qwen_tokenizer() {
  static const Tokenizer t =
      Tokenizer::load(SLUICE_SOURCE_DIR "/tests/data/tokenizer/pattern_qwen.json").value();
  return t;
}
inline ChatMl chatml(ChatMlThinking thinking = ChatMlThinking::kSwitch) {
  return ChatMl::from(qwen_tokenizer(), thinking).value();
}
inline std::vector<int32_t> qwen_ids(std::string_view text) {
  std::vector<int32_t> ids;
  EXPECT_TRUE(qwen_tokenizer().encode(text, Specials::kParse, &ids).ok());
  return ids;
}
inline std::string template_file(const std::string& name) {
  return read_file(SLUICE_SOURCE_DIR "/tests/data/chat_templates/" + name + ".jinja", 1 << 20).value();
}

}  // namespace sluice
