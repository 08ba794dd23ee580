// Finds where the end of a sequence occurred before, so that what followed it there can be drafted.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace sluice {

struct NgramMatch {
  int64_t end = 0;     // the tokens from here on followed the earlier occurrence
  int64_t length = 0;  // of the match, in tokens; 0: none
};

// Every position of one sequence, by the `min_match` tokens before it. Grows with the sequence.
class NgramIndex {
 public:
  // min_match >= 1.
  explicit NgramIndex(int64_t min_match) : min_match_(min_match) {}

  // Takes in `tokens`, which begin with the tokens of the last call: at most kTokensOfCall of them, and `budget`, which it lowers. So a
  // long prompt is indexed over several steps. Returns whether all of them are indexed.
  bool update(std::span<const int32_t> tokens, int64_t* budget);
  // The longest suffix of `tokens`, min_match to max_match tokens, that occurred before; the latest such place. Looks at kPlacesOfCall
  // places. `tokens` are what the last update() took in.
  NgramMatch find(std::span<const int32_t> tokens, int64_t max_match) const;

  static constexpr int64_t kTokensOfCall = 8192, kPlacesOfCall = 64;

 private:
  size_t slot_of(std::span<const int32_t> gram) const;
  void make_room(int64_t tokens);

  int64_t min_match_, indexed_ = 0;  // positions up to here are in the index
  std::vector<int32_t> latest_;      // by hash of the tokens before it: a position; 0: none
  std::vector<int32_t> before_;      // of each position: the one before it with the same hash
};

}  // namespace sluice
