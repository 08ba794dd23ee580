// Tokens in the order of ops/sample.h, and chunks of a row of logits: scalar, the same for every vector width.
#pragma once
#include <algorithm>
#include <cstdint>

namespace sluice::cpu {

constexpr int64_t kLogitChunk = 8192;  // logits per index of a loop

struct Entry {
  float logit;
  int32_t id;
};
inline bool before(const Entry& a, const Entry& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// Entries that gather() (simd/logits.h) may store while it finds the k largest of n.
inline int64_t gather_room(int64_t n, int64_t k) { return std::min(n, 2 * k + 1024); }

// The results of top_logprobs_scan for kLogitChunk logits of a row.
struct LogprobChunk {
  float largest;
  double sum;      // sum of e^(x - largest); meaningless unless `largest` is finite
  int64_t before;  // tokens that rank before the sampled token
};

}  // namespace sluice::cpu
