// What the next token of one request may be.
#pragma once
#include <cstdint>
#include <span>

namespace sluice {

// Keeps where its request's answer is. The engine calls it on the thread that steps, while the device computes: neither call may
// take long.
class TokenFilter {
 public:
  virtual ~TokenFilter() = default;
  // Writes all bits: bit id % 32 of word id / 32 says whether token `id` may come next. (vocab + 31) / 32 words; at least one token
  // may come.
  virtual void allowed(std::span<uint32_t> bits) = 0;
  // The token that was drawn: once for each token of the answer, in order.
  virtual void accept(int32_t id) = 0;
};

}  // namespace sluice
