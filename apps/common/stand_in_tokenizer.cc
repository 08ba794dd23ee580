#include "apps/common/stand_in_tokenizer.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.h"

namespace sluice::apps {
namespace {

constexpr std::string_view kLetters = "etaoinshrdlcumwfgypbvkjxqz";  // by frequency in English
constexpr const char* kSpace = "\xc4\xa0";  // the byte-level letter for a space, U+0120
constexpr int64_t kBytes = 256;

struct Special {
  const char* content;
  int64_t id;  // gpt-oss's id
};
constexpr Special kSpecials[] = {{"<|startoftext|>", 199998}, {"<|endoftext|>", 199999},
                                 {"<|return|>", 200002},      {"<|constrain|>", 200003},
                                 {"<|channel|>", 200005},     {"<|start|>", 200006},
                                 {"<|end|>", 200007},         {"<|message|>", 200008},
                                 {"<|call|>", 200012},        {"<|endofprompt|>", 200018}};
constexpr int64_t kGptOssVocab = 201088;

// The letters that represent bytes in tokenizer.json: a printable byte has the letter with the same code; the other
// bytes have U+0100 and up.
std::vector<std::string> byte_letters() {
  std::vector<std::string> out;
  char32_t next = 256;
  for (int b = 0; b < kBytes; ++b) {
    const bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    append_utf8(itself ? static_cast<char32_t>(b) : next++, &out.emplace_back());
  }
  return out;
}

// Collects words, and for each word of several letters the two words that merge into it.
struct Words {
  int64_t wanted;
  Json vocab = Json::object(), merges = Json::array();

  bool full() const { return static_cast<int64_t>(vocab.size()) >= wanted; }
  void add(const std::string& word) {
    const auto id = static_cast<int64_t>(vocab.size());
    vocab[word] = id;
  }
  // Joins every member of `firsts` with every member of `seconds`, early members first, until the vocabulary is full.
  std::vector<std::string> join(const std::vector<std::string>& firsts,
                                const std::vector<std::string>& seconds) {
    std::vector<std::string> out;
    const auto one = [&](size_t i, size_t j) {
      if (i >= firsts.size() || j >= seconds.size() || full()) return;
      merges.push_back(Json::array({firsts[i], seconds[j]}));
      add(out.emplace_back(firsts[i] + seconds[j]));
    };
    for (size_t shell = 0; shell < std::max(firsts.size(), seconds.size()) && !full(); ++shell) {
      for (size_t k = 0; k < shell; ++k) one(k, shell), one(shell, k);
      one(shell, shell);
    }
    return out;
  }
};

Json special(const std::string& content, int64_t id) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

Json specials_of(int64_t vocab, int64_t words) {
  Json out = Json::array();
  if (vocab != kGptOssVocab) {
    for (const Special& s : kSpecials) out.push_back(special(s.content, words + std::ssize(out)));
    return out;
  }
  size_t next = 0;
  for (int64_t id = words; id < vocab; ++id) {
    const bool named = next < std::size(kSpecials) && kSpecials[next].id == id;
    out.push_back(special(named ? kSpecials[next].content : "<|reserved_" + std::to_string(id) + "|>", id));
    if (named) ++next;
  }
  return out;
}

}  // namespace

Result<Json> stand_in_tokenizer(int64_t vocab) {
  const int64_t words = vocab == kGptOssVocab ? kSpecials[0].id : vocab - std::ssize(kSpecials);
  if (words < kBytes)
    return invalid("vocab_size: wanted at least " + std::to_string(kBytes + std::ssize(kSpecials)) +
                   " for a tokenizer of random weights, found " + std::to_string(vocab));
  Words made{.wanted = words};
  for (const std::string& letter : byte_letters()) made.add(letter);
  std::vector<std::string> letters;
  for (const char c : kLetters) letters.emplace_back(1, c);
  std::vector<std::string> firsts = letters;
  firsts.insert(firsts.begin(), kSpace);
  const std::vector<std::string> starts = made.join(firsts, letters);
  std::vector<std::string> pairs;  // pairs of letters, without those that begin with a space
  for (const std::string& pair : starts)
    if (!pair.starts_with(kSpace)) pairs.push_back(pair);
  const std::vector<std::string> fours = made.join(starts, pairs);
  if (!made.full()) made.join(fours, pairs);  // words of six letters, if the vocabulary has room for them
  Json level{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  return Json{{"version", "1.0"},
              {"truncation", nullptr},
              {"padding", nullptr},
              {"added_tokens", specials_of(vocab, words)},
              {"normalizer", nullptr},
              {"pre_tokenizer", level},
              {"post_processor", nullptr},
              {"decoder", level},
              {"model",
               {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", nullptr},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", false},
                {"byte_fallback", false},
                {"vocab", std::move(made.vocab)},
                {"merges", std::move(made.merges)}}}};
}

Json stand_in_tokenizer_config(int64_t context) {
  return {{"tokenizer_class", "PreTrainedTokenizerFast"},
          {"bos_token", "<|startoftext|>"},
          {"eos_token", "<|return|>"},
          {"pad_token", "<|endoftext|>"},
          {"model_max_length", context}};
}

}  // namespace sluice::apps
