// What the next token of one request may be.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>

#include "base/status.h"

namespace sluice {

// Keeps where its request's answer is. The engine calls it on threads of its own beside the steps (engine/mask_workers.h): one call at a
// time, each after what the one before has done, though not always on the same thread. What it says must depend on its tokens alone.
// An error ends its request and nobody else's; std::bad_alloc counts as one. Once `stop` is set nobody waits for the answer any more:
// the call should return soon, with anything.
class TokenFilter {
 public:
  virtual ~TokenFilter() = default;
  // The token that was drawn: once for each token of the answer, in order.
  virtual Status accept(int32_t id, const std::stop_token& stop) = 0;
  // Writes all bits: bit id % 32 of word id / 32 says whether token `id` may come next. (vocab + 31) / 32 words; what stands behind
  // the vocabulary does not matter. Where no token may come, the request ends with an error.
  virtual Status allowed(std::span<uint32_t> bits, const std::stop_token& stop) = 0;
  // Another filter, where this one is. Drafts are tried on it (engine/speculation.h), so this one hears of accepted tokens alone.
  virtual std::unique_ptr<TokenFilter> copy() const = 0;
};

}  // namespace sluice
