// What the kernels of expert_lora_mma_sm90 and expert_lora_rows_sm90 share with their descriptors.
#pragma once
#include <string>
#include <string_view>

#include "backends/cuda/card.h"
#include "ops/expert_lora.h"

namespace sluice::cuda {

constexpr int kLoraWarps = 8, kLoraThreads = 32 * kLoraWarps;
constexpr int kLoraUnit = 32;  // elements of a row that four lanes load together

// What both refuse. operands: why x, a and b are bf16.
inline Refusal lora_refusal(const ExpertLora::Problem& p, const DeviceInfo& d, std::string_view operands) {
  Refusal r;
  need_sm90(r, d);
  need_type(r, "x", p.x, DType::kBF16, operands);
  need_type(r, "w", p.w, DType::kBF16, operands);
  need_multiple(r, "width", p.width, 8, "16-byte chunks of a row");
  need_multiple(r, "rank", p.rank, 8, "16-byte chunks of a row of b");
  need_multiple(r, "features", p.features, 8, "16-byte chunks of a row of z");
  r.need(!is_gated(p.act) || p.layout == WeightLayout::kFragments, "layout fragments (adjacent columns of z)",
         "layout=" + std::string(word(p.layout)));
  r.need(!p.x_unaligned, "x_unaligned=0 (16-byte chunks of a row)", "x_unaligned", p.x_unaligned);
  r.need(p.rows < (int64_t{1} << 27), "rows < 2^27 (CTAs in a grid)", "rows", p.rows);
  return r;
}

}  // namespace sluice::cuda
