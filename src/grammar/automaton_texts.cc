// The minimal automaton of a list of texts, in time linear in their bytes.
#include <algorithm>
#include <unordered_set>
#include <utility>

#include "grammar/automaton.h"

namespace sluice {
namespace {

struct TextNode {
  std::vector<std::pair<uint8_t, int32_t>> edges = {};  // sorted by byte
  bool accepts = false;
  bool operator==(const TextNode&) const = default;
};

// Adds sorted texts one by one. The nodes of the previous text beyond its common prefix with the next text no longer change, so they are
// merged with equivalent nodes immediately (Daciuk, Mihov, Watson and Watson, 2000).
class TextsBuilder {
 public:
  TextsBuilder() : known_(16, Hash{&nodes_}, Equal{&nodes_}) { path_.push_back(add()); }

  void add(const std::string& text) {
    const auto [end, same] = std::mismatch(text.begin(), text.end(), last_.begin(), last_.end());
    settle(static_cast<size_t>(end - text.begin()));
    for (auto byte = end; byte != text.end(); ++byte) {
      const int32_t to = add();
      at(path_.back()).edges.emplace_back(static_cast<uint8_t>(*byte), to);
      path_.push_back(to);
    }
    at(path_.back()).accepts = true;
    last_ = text;
  }
  // The first node is the start.
  const std::vector<TextNode>& done() {
    settle(0);
    return nodes_;
  }

 private:
  struct Hash {
    const std::vector<TextNode>* nodes;
    size_t operator()(int32_t i) const {
      const TextNode& node = (*nodes)[static_cast<size_t>(i)];
      uint64_t h = node.accepts ? 0x9e3779b97f4a7c15 : 0x2545f4914f6cdd1d;
      for (const auto& [byte, to] : node.edges)
        h = (h ^ (uint64_t{byte} << 32 | static_cast<uint32_t>(to))) * 0x9e3779b97f4a7c15, h ^= h >> 31;
      return static_cast<size_t>(h);
    }
  };
  struct Equal {
    const std::vector<TextNode>* nodes;
    bool operator()(int32_t a, int32_t b) const {
      return (*nodes)[static_cast<size_t>(a)] == (*nodes)[static_cast<size_t>(b)];
    }
  };

  TextNode& at(int32_t i) { return nodes_[static_cast<size_t>(i)]; }
  int32_t add() {
    if (free_.empty()) {
      nodes_.emplace_back();
      return static_cast<int32_t>(nodes_.size()) - 1;
    }
    const int32_t out = free_.back();
    free_.pop_back();
    return out;
  }
  // Merges the last text's nodes after its first `bytes` bytes, starting at the end.
  void settle(size_t bytes) {
    for (; path_.size() > bytes + 1; path_.pop_back()) {
      const int32_t node = path_.back();
      const auto [known, is_new] = known_.insert(node);
      if (is_new) continue;
      at(path_[path_.size() - 2]).edges.back().second = *known;
      at(node) = {};
      free_.push_back(node);
    }
  }

  std::vector<TextNode> nodes_;
  std::vector<int32_t> free_, path_;
  std::string last_;
  std::unordered_set<int32_t, Hash, Equal> known_;
};

}  // namespace

Dfa Dfa::of_texts(std::span<const std::string> texts) {
  if (texts.empty()) return {};
  std::vector<const std::string*> sorted;
  for (const std::string& text : texts) sorted.push_back(&text);
  // compare() orders by unsigned bytes.
  std::sort(sorted.begin(), sorted.end(),
            [](const std::string* a, const std::string* b) { return a->compare(*b) < 0; });
  TextsBuilder builder;
  for (const std::string* text : sorted) builder.add(*text);
  const std::vector<TextNode>& nodes = builder.done();
  // Numbers nodes breadth first.
  std::vector<int32_t> number(nodes.size(), kDead), order{0};
  number[0] = 0;
  std::array<bool, 256> used{};
  for (size_t i = 0; i < order.size(); ++i)
    for (const auto& [byte, to] : nodes[static_cast<size_t>(order[i])].edges) {
      used[byte] = true;
      if (number[static_cast<size_t>(to)] != kDead) continue;
      number[static_cast<size_t>(to)] = static_cast<int32_t>(order.size());
      order.push_back(to);
    }
  // Bytes that occur in no text form one class.
  Dfa out;
  const bool all_used = std::all_of(used.begin(), used.end(), [](bool u) { return u; });
  out.classes_ = all_used ? 0 : 1;
  for (size_t b = 0; b < 256; ++b)
    if (used[b]) out.class_of_[b] = static_cast<uint8_t>(out.classes_++);
  out.next_.assign(order.size() * out.classes_, kDead);
  for (size_t s = 0; s < order.size(); ++s) {
    const TextNode& node = nodes[static_cast<size_t>(order[s])];
    std::array<uint64_t, 4> bits{};
    for (const auto& [byte, to] : node.edges) {
      out.next_[s * out.classes_ + out.class_of_[byte]] = number[static_cast<size_t>(to)];
      bits[byte / 64] |= uint64_t{1} << (byte % 64);
    }
    out.accepts_.push_back(node.accepts ? 1 : 0);
    out.has_next_.push_back(node.edges.empty() ? 0 : 1);
    out.next_bytes_.push_back(bits);
  }
  return out;
}

}  // namespace sluice
