#include "nn/moe/slice.h"

#include <algorithm>
#include <string>

#include "nn/moe/problems.h"

namespace sluice {
namespace {

constexpr int64_t kSizeMax = 1 << 16;  // more than the blocks or experts of any layer

Status check_rank(const char* what, int64_t rank, int64_t size) {
  if (size > kSizeMax)
    return invalid(std::string("slice: ") + what + ": wanted a size from 1 to " + std::to_string(kSizeMax) +
                   ", found " + std::to_string(size));
  if (size >= 1 && rank >= 0 && rank < size) return {};
  return invalid(std::string("slice: ") + what + ": wanted a rank from 0 to size - 1, found rank " +
                 std::to_string(rank) + " of size " + std::to_string(size));
}

std::string rank_text(const char* what, int64_t rank, int64_t size) {
  return std::string("slice: ") + what + " rank " + std::to_string(rank) + " of " + std::to_string(size);
}

// Columns per block; a block is never split between ranks.
int64_t block_of(WeightFormat f) {
  return f.is(DType::kE4M3, WeightScales::kBlocks) ? kScaleColumns : kMxBlock;
}

}  // namespace

Part part_of_width(int64_t width, const Slice& slice, WeightFormat format) {
  const int64_t block = block_of(format), blocks = (width + block - 1) / block;
  const int64_t each = (blocks + slice.tp_size - 1) / slice.tp_size * block;
  const int64_t begin = std::min(width, slice.tp_rank * each);
  return {begin, std::min(each, width - begin)};
}

Part part_of_experts(int64_t experts, const Slice& slice) {
  const int64_t begin = experts * slice.ep_rank / slice.ep_size;
  return {begin, experts * (slice.ep_rank + 1) / slice.ep_size - begin};
}

Result<MoeConfig> sliced(const MoeConfig& whole, const Slice& s) {
  SLUICE_TRY(check_rank("tp", s.tp_rank, s.tp_size));
  SLUICE_TRY(check_rank("ep", s.ep_rank, s.ep_size));
  if (whole.scope != ExpertScope::kAll && s.ep_size > 1)
    return invalid("slice: scope: wanted all (a whole layer), found " + std::string(word(whole.scope)));
  SLUICE_TRY(check_ranges(whole));
  SLUICE_TRY(check_shared(whole));
  MoeConfig out = whole;
  const WeightFormat format{whole.expert_w, whole.expert_scales};
  const Part width = part_of_width(whole.intermediate, s, format);
  if (width.count == 0)
    return invalid(rank_text("tp", s.tp_rank, s.tp_size) + ": wanted at least one block of " +
                   std::to_string(block_of(format)) + ", found none: intermediate " +
                   std::to_string(whole.intermediate) + " has " +
                   std::to_string((whole.intermediate + block_of(format) - 1) / block_of(format)) +
                   "; use fewer ranks");
  out.intermediate = width.count;
  if (s.ep_size > 1) {
    const Part experts = part_of_experts(whole.experts, s);
    if (experts.count == 0)
      return invalid(rank_text("ep", s.ep_rank, s.ep_size) + ": wanted at least one expert, found none of " +
                     std::to_string(whole.experts) + "; use fewer ranks");
    out.scope = ExpertScope::kRange;
    out.expert_begin = experts.begin;
    out.expert_count = experts.count;
  }
  out.down_bias = whole.down_bias && s.tp_rank == 0;
  out.shared_intermediate =
      s.ep_rank > 0 ? 0
      : whole.shared_as_slots
          ? shared_slots(whole) * width.count
          : part_of_width(whole.shared_intermediate, s, {whole.shared_w, whole.shared_scales}).count;
  out.residual = whole.residual && s.tp_rank == 0 && s.ep_rank == 0;
  return out;
}

}  // namespace sluice
