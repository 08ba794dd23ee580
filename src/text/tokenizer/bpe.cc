#include "text/tokenizer/bpe.h"

#include <algorithm>
#include <tuple>

namespace sluice {
namespace {

using Symbol = BpeScratch::Symbol;
using Waiting = BpeScratch::Waiting;

bool later(const Waiting& a, const Waiting& b) {
  return std::tie(a.rank, a.place) > std::tie(b.rank, b.place);
}

}  // namespace

bool Merges::fill(std::vector<Merge> merges, int64_t ids, int64_t* twice) {
  merges_ = std::move(merges);
  const auto before = [](const Merge& a, const Merge& b) {
    return std::tie(a.left, a.right, a.rank) < std::tie(b.left, b.right, b.rank);
  };
  std::sort(merges_.begin(), merges_.end(), before);
  for (size_t i = 1; i < merges_.size(); ++i) {
    if (merges_[i - 1].left != merges_[i].left || merges_[i - 1].right != merges_[i].right) continue;
    *twice = merges_[i].rank;
    return false;
  }
  first_.assign(static_cast<size_t>(ids) + 1, 0);
  for (const Merge& m : merges_) ++first_[static_cast<size_t>(m.left) + 1];
  for (size_t i = 1; i < first_.size(); ++i) first_[i] += first_[i - 1];
  return true;
}

const Merges::Merge* Merges::find(int32_t left, int32_t right) const {
  const Merge* begin = merges_.data() + first_[static_cast<size_t>(left)];
  const Merge* end = merges_.data() + first_[static_cast<size_t>(left) + 1];
  const Merge* found =
      std::lower_bound(begin, end, right, [](const Merge& m, int32_t wanted) { return m.right < wanted; });
  return found != end && found->right == right ? found : nullptr;
}

void merge_piece(std::string_view piece, const std::array<int32_t, 256>& byte_ids, const Merges& merges,
                 BpeScratch* scratch, std::vector<int32_t>* ids) {
  std::vector<Symbol>& symbols = scratch->symbols;
  std::vector<Waiting>& heap = scratch->heap;
  symbols.clear();
  heap.clear();
  const int32_t size = static_cast<int32_t>(piece.size());
  for (int32_t i = 0; i < size; ++i)
    symbols.push_back(
        {byte_ids[static_cast<uint8_t>(piece[static_cast<size_t>(i)])], i - 1, i + 1 < size ? i + 1 : -1});
  const auto at = [&](int32_t place) -> Symbol& { return symbols[static_cast<size_t>(place)]; };
  const auto wait = [&](int32_t place) {
    if (place < 0 || at(place).next < 0) return false;
    const int32_t left = at(place).id, right = at(at(place).next).id;
    const Merges::Merge* m = merges.find(left, right);
    if (m) heap.push_back({m->rank, place, left, right, m->merged});
    return m != nullptr;
  };
  for (int32_t i = 0; i + 1 < size; ++i) wait(i);
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Waiting top = heap.back();
    heap.pop_back();
    Symbol& left = at(top.place);
    // Skips stale entries. A symbol that was merged into its left neighbor has id -1, which no entry contains.
    if (left.id != top.left || left.next < 0 || at(left.next).id != top.right) continue;
    Symbol& right = at(left.next);
    left.id = top.merged;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) at(left.next).previous = top.place;
    for (const int32_t place : {top.place, left.previous})
      if (wait(place)) std::push_heap(heap.begin(), heap.end(), later);
  }
  for (int32_t place = 0; place >= 0; place = at(place).next) ids->push_back(at(place).id);
}

}  // namespace sluice
