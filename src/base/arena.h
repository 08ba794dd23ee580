// One block of memory, allocated from the start on and freed all at once.
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
  kGuard,  // fills each loan with NaN patterns and checks the bytes after it when it comes back
};

// Lends from a block it does not own. Not thread-safe: one arena a stream.
class Arena {
 public:
  static constexpr size_t kAlignment = 256;  // bytes; enough for any vector or bulk copy

  Arena(std::byte* block, size_t bytes, ArenaCheck check = ArenaCheck::kOff);

  // kOutOfMemory names the bytes wanted and the bytes left.
  Result<Workspace> lend(size_t bytes);
  // Frees everything. Under kGuard: kDevice if the bytes after a loan were written, naming the loan.
  Status reset();
  // What a loan of `bytes` takes out of the block, so that callers can size it.
  static size_t footprint(size_t bytes, ArenaCheck check = ArenaCheck::kOff);

 private:
  std::byte* block_;
  size_t bytes_;
  size_t used_ = 0;
  ArenaCheck check_;
  std::vector<Workspace> loans_;  // filled under kGuard only
};

}  // namespace sluice
