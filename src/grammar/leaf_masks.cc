#include "grammar/leaf_masks.h"

#include <algorithm>
#include <bit>

namespace sluice {
namespace {

constexpr size_t kFewMax = 512;

// Whether every unescaped character leads from `state` back to `state` without passing an accepting state.
bool chars_lead_back(const Dfa& dfa, int32_t state) {
  const auto tail = [&](auto&& self, int32_t s, int first, int last, int left) -> bool {
    if (s == Dfa::kDead || dfa.accepts(s)) return false;
    for (int byte = first; byte <= last; ++byte) {
      const int32_t t = dfa.step(s, static_cast<uint8_t>(byte));
      if (left == 1 ? t != state : !self(self, t, 0x80, 0xbf, left - 1)) return false;
    }
    return true;
  };
  if (dfa.accepts(state)) return false;
  for (int byte = 0x20; byte < 0x80; ++byte)
    if (byte != '"' && byte != '\\' && dfa.step(state, static_cast<uint8_t>(byte)) != state) return false;
  for (int lead = 0xc2; lead <= 0xf4; ++lead) {
    const int first = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    const int last = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if (!tail(tail, dfa.step(state, static_cast<uint8_t>(lead)), first, last,
              lead < 0xe0   ? 1
              : lead < 0xf0 ? 2
                            : 3))
      return false;
  }
  return true;
}

}  // namespace

size_t LeafMask::bytes() const {
  return sizeof(LeafMask) + bits.size() * sizeof(uint32_t) + few.size() * sizeof(int32_t) +
         (ends.size() + inner.size()) * sizeof(Exit);
}

LeafMasks::LeafMasks(LeafPointer leaf, std::shared_ptr<const Vocabulary> vocabulary,
                     std::shared_ptr<std::atomic<int64_t>> kept)
    : leaf_(std::move(leaf)), vocabulary_(std::move(vocabulary)), kept_(std::move(kept)) {
  if (!leaf_->counted()) return;
  const int32_t far =
      leaf_->to_end.empty() ? 0 : *std::max_element(leaf_->to_end.begin(), leaf_->to_end.end());
  room_max_ = vocabulary_->all.bytes_max() + far;
}
LeafMasks::~LeafMasks() { *kept_ -= own_bytes_; }

std::shared_ptr<const LeafMask> LeafMasks::at(Leaf::Place place, Work* work) {
  // Where the minimum matters, a mask belongs to one count.
  const bool is_short = leaf_->least_steers && place.count < leaf_->least;
  const int64_t left = leaf_->counted() ? std::min(leaf_->most - place.count, room_max_) : 0;
  const int64_t room = is_short ? -1 - place.count : left;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = masks_.find({place.state, room}); found != masks_.end()) return found->second;
  }
  // Beyond room_max_ the exact distance to the limit does not matter, so the mask is computed for `room` characters left.
  auto mask =
      find(is_short ? place : Leaf::Place{place.state, leaf_->counted() ? leaf_->most - left : 0}, work);
  if (mask == nullptr) return nullptr;
  const auto bytes = static_cast<int64_t>(mask->bytes());
  const std::lock_guard lock(mutex_);
  if (*kept_ + bytes > kKeptBytesMax) return mask;
  const auto [found, is_new] = masks_.try_emplace({place.state, room}, mask);
  if (is_new) {
    own_bytes_ += bytes;
    *kept_ += bytes;
  }
  return found->second;
}

bool LeafMasks::plain_stays(int32_t state) const {
  return (!leaf_->counted() || leaf_->counts[static_cast<size_t>(state)] != 0) &&
         chars_lead_back(leaf_->dfa, state);
}

std::shared_ptr<const LeafMask> LeafMasks::find(Leaf::Place place, Work* work) const {
  const Leaf& leaf = *leaf_;
  auto out = std::make_shared<LeafMask>();
  TokenBits bits(static_cast<size_t>(vocabulary_->words));
  out->trie = &vocabulary_->all;
  if (plain_stays(place.state)) {
    out->trie = &vocabulary_->not_plain;
    const auto sizes = static_cast<int64_t>(vocabulary_->plain.size()) - 1;
    const int64_t room =
        leaf.counted() ? leaf.most - place.count - leaf.to_end[static_cast<size_t>(place.state)] : sizes;
    bits = vocabulary_->plain[static_cast<size_t>(std::clamp<int64_t>(room, 0, sizes))];
  }
  const auto nodes = out->trie->nodes();
  std::vector<Leaf::Place> places{place};
  for (int32_t n = 0; n < static_cast<int32_t>(nodes.size());) {
    const TokenTrie::Node& node = nodes[static_cast<size_t>(n)];
    places.resize(node.depth);
    const Leaf::Place to = leaf.step(places.back(), node.byte);
    if (!work->spend(1)) return nullptr;
    if (to.state == Dfa::kDead) {
      n = node.end;
      continue;
    }
    const bool goes_on = leaf.dfa.goes_on(to.state);
    if (leaf.dfa.accepts(to.state))
      (goes_on ? out->inner : out->ends).push_back({n, static_cast<int32_t>(to.count - place.count)});
    if (goes_on) out->trie->set_tokens(node, bits);
    places.push_back(to);
    n = goes_on ? n + 1 : node.end;
  }
  size_t count = 0;
  for (const uint32_t word : bits) count += static_cast<size_t>(std::popcount(word));
  if (count > kFewMax) {
    out->bits = std::move(bits);
    return out;
  }
  for (size_t w = 0; w < bits.size(); ++w)
    for (uint32_t word = bits[w]; word != 0; word &= word - 1)
      out->few.push_back(static_cast<int32_t>(w * 32 + static_cast<size_t>(std::countr_zero(word))));
  return out;
}

}  // namespace sluice
