#include "base/arena.h"

#include <cstring>

namespace sluice {
namespace {

constexpr size_t kGuardBytes = Arena::kAlignment;
constexpr int kGuardPattern = 0xA5;
constexpr int kPoison = 0xFF;  // floats read as NaN, indices as -1

size_t rounded(size_t bytes) {
  return (bytes + Arena::kAlignment - 1) / Arena::kAlignment * Arena::kAlignment;
}

}  // namespace

Arena::Arena(std::byte* block, size_t bytes, ArenaCheck check)
    : block_(block), bytes_(bytes), check_(check) {}

size_t Arena::footprint(size_t bytes, ArenaCheck check) {
  return rounded(bytes) + (check == ArenaCheck::kGuard ? kGuardBytes : 0);
}

Result<Workspace> Arena::lend(size_t bytes) {
  const size_t need = footprint(bytes, check_);
  if (need > bytes_ - used_)
    return out_of_memory("arena: wanted " + std::to_string(need) + " bytes, " +
                         std::to_string(bytes_ - used_) + " of " + std::to_string(bytes_) + " are left");
  const Workspace loan{block_ + used_, bytes};
  used_ += need;
  if (check_ == ArenaCheck::kGuard) {
    std::memset(loan.data, kPoison, bytes);
    std::memset(loan.data + bytes, kGuardPattern, need - bytes);
    loans_.push_back(loan);
  }
  return loan;
}

Status Arena::reset() {
  Status status;
  for (size_t i = 0; i < loans_.size(); ++i) {
    const Workspace& loan = loans_[i];
    for (size_t b = loan.bytes; b < footprint(loan.bytes, check_) && status.ok(); ++b)
      if (loan.data[b] != static_cast<std::byte>(kGuardPattern))
        status = {Code::kDevice, "arena: loan " + std::to_string(i) + " of " + std::to_string(loan.bytes) +
                                     " bytes was overrun at byte " + std::to_string(b)};
  }
  loans_.clear();
  used_ = 0;
  return status;
}

}  // namespace sluice
