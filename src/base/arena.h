// A bump allocator over one block of memory; frees everything at once.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/tensor.h"

namespace sluice {

enum class ArenaCheck : uint8_t {
  kOff,
  kGuard,  // fills each loan with bytes that read as NaN; reset() checks the bytes after each loan
};

// Lends memory of a block that it does not own. Not thread-safe: use one arena per stream.
class Arena {
 public:
  static constexpr size_t kAlignment = 256;  // bytes; enough for any vector or bulk copy

  Arena(std::byte* block, size_t bytes, ArenaCheck check = ArenaCheck::kOff);

  // kOutOfMemory names the bytes wanted and the bytes left.
  Result<Workspace> lend(size_t bytes);
  // Frees everything. With kGuard: kDevice if the bytes after a loan were overwritten; the message names the loan.
  Status reset();
  // Bytes that a loan of `bytes` bytes uses of the block, so that callers can size the block.
  static size_t footprint(size_t bytes, ArenaCheck check = ArenaCheck::kOff);

 private:
  std::byte* block_;
  size_t bytes_;
  size_t used_ = 0;
  ArenaCheck check_;
  std::vector<Workspace> loans_;  // filled only with kGuard
};

}  // namespace sluice
