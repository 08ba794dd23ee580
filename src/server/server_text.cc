#include "server/server_text.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <random>

namespace sluice {

bool same_secret(std::string_view wanted, std::string_view found) {
  unsigned char differs = wanted.size() != found.size();
  for (size_t i = 0; i < found.size(); ++i)
    differs |= static_cast<unsigned char>(found[i] ^ (wanted.empty() ? 1 : wanted[i % wanted.size()]));
  return differs == 0;
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned char byte = 0;
    const char* pair = text.data() + i + 1;
    const bool coded =
        text[i] == '%' && i + 2 < text.size() && std::from_chars(pair, pair + 2, byte, 16).ptr == pair + 2;
    out += coded ? static_cast<char>(byte) : text[i];
    if (coded) i += 2;
  }
  return out;
}

std::string name_in(const std::string& path, std::string_view before) {
  return percent_decoded(path).substr(before.size());
}

bool lists(std::string_view words, std::string_view word) {
  for (size_t at = words.find(word); at != words.npos; at = words.find(word, at + 1))
    if ((at == 0 || words[at - 1] == ' ') &&
        (at + word.size() == words.size() || words[at + word.size()] == ','))
      return !word.empty();
  return false;
}

std::string random_name() {
  static thread_local std::random_device device;
  char out[33];
  for (int i = 0; i < 4; ++i) std::snprintf(out + i * 8, 9, "%08x", device());
  return out;
}

}  // namespace sluice
