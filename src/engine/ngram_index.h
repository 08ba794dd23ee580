// Finds an earlier occurrence of the last tokens of a sequence. The tokens that followed that occurrence
// become drafts for speculative decoding.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace sluice {

struct NgramMatch {
  int64_t end = 0;     // position of the token after the earlier occurrence
  int64_t length = 0;  // matching tokens; 0: no match
};

// A hash table of the positions of one sequence, keyed by the `min_match` tokens before each position. It
// grows with the sequence.
class NgramIndex {
 public:
  // min_match >= 1.
  explicit NgramIndex(int64_t min_match) : min_match_(min_match) {}

  // Indexes the tokens that are new since the last call, at most kTokensOfCall and at most *budget tokens,
  // and subtracts their number from *budget. A long prompt needs several calls. Returns whether all of
  // `tokens` are indexed.
  bool update(std::span<const int32_t> tokens, int64_t* budget);
  // Returns the earlier occurrence with the longest match of the last tokens, from min_match to max_match
  // tokens; of equally long matches, the latest. Compares at most kPlacesOfCall occurrences. `tokens`: as in
  // the last update().
  NgramMatch find(std::span<const int32_t> tokens, int64_t max_match) const;

  static constexpr int64_t kTokensOfCall = 8192, kPlacesOfCall = 64;

 private:
  size_t slot_of(std::span<const int32_t> gram) const;
  void make_room(int64_t tokens);

  int64_t min_match_, indexed_ = 0;
  std::vector<int32_t> latest_;  // by hash: the latest position with this hash; 0: none
  std::vector<int32_t> before_;  // by position: the previous position with the same hash; 0: none
};

}  // namespace sluice
