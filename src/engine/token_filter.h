// Restricts the next token of a request, for example to a grammar.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>

#include "base/status.h"

namespace sluice {

// A filter tracks the answer of one request. The engine calls it on worker threads while steps run
// (engine/mask_workers.h): one call at a time, but not always on the same thread. Its results must depend
// only on the tokens that it accepted. An error, including std::bad_alloc, ends only the filter's own
// request. Once `stop` is set, the result is no longer needed, and the call should return soon with any
// result.
class TokenFilter {
 public:
  virtual ~TokenFilter() = default;
  // Called once for each token of the answer, in order.
  virtual Status accept(int32_t id, const std::stop_token& stop) = 0;
  // Writes all bits: bit id % 32 of word id / 32 says whether token `id` may come next. There are (vocab +
  // 31) / 32 words; bits past the vocabulary are ignored. If no token is allowed, the request ends with an
  // error.
  virtual Status allowed(std::span<uint32_t> bits, const std::stop_token& stop) = 0;
  // Returns an independent filter in the same state. The engine tries drafts on the copy
  // (engine/speculation.h), so that the original receives only accepted tokens.
  virtual std::unique_ptr<TokenFilter> copy() const = 0;
};

}  // namespace sluice
