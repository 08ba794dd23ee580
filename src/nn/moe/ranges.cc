// Checks the range of each field of an MoE layer. Without this check, the operations that run the layer would
// report bad values under their own field names, and sums and products of the fields could overflow before an
// operation checks them.
#include <cmath>
#include <utility>

#include "base/printable.h"
#include "nn/moe/problems.h"
#include "ops/bounds.h"
#include "ops/reference/route_bounds.h"

namespace sluice {
namespace {

constexpr int64_t kRankMax = 1024;  // ops/lora_delta.h, ops/expert_lora.h
constexpr double kRealMax = 1e30;   // far below the largest float; its square is above the largest float

struct IntegerRange {
  std::string_view name;
  int64_t MoeConfig::*field;
  int64_t least, most;
};
constexpr IntegerRange kIntegers[] = {
    {"hidden", &MoeConfig::hidden, 1, kWidthMax},
    {"intermediate", &MoeConfig::intermediate, 1, kWidthMax},
    {"experts", &MoeConfig::experts, 1, kRoutedExpertsMax},
    {"top_k", &MoeConfig::top_k, 1, kRoutedTopKMax},
    {"lora_rank", &MoeConfig::lora_rank, 0, kRankMax},
    {"lora_adapters", &MoeConfig::lora_adapters, 0, kRankMax},
    {"expert_lora_rank", &MoeConfig::expert_lora_rank, 0, kRankMax},
    {"groups", &MoeConfig::groups, 1, kRoutedExpertsMax},
    {"topk_groups", &MoeConfig::topk_groups, 0, kRoutedExpertsMax},
    {"hash_vocab", &MoeConfig::hash_vocab, 0, kRowsMax},
    {"expert_begin", &MoeConfig::expert_begin, 0, kRoutedExpertsMax},
    {"expert_count", &MoeConfig::expert_count, 0, kRoutedExpertsMax},
    {"shared_intermediate", &MoeConfig::shared_intermediate, 0, kWidthMax},
    {"latent", &MoeConfig::latent, 0, kWidthMax},
};

struct RealRange {
  std::string_view name, wanted;
  double MoeConfig::*field;
  bool (*ok)(double);
};
bool moderate(double v) { return std::fabs(v) < kRealMax; }  // false for NaN
constexpr RealRange kReals[] = {
    {"scale", "above 0 and below 1e30", &MoeConfig::scale, [](double v) { return v > 0 && v < kRealMax; }},
    {"alpha", "between -1e30 and 1e30", &MoeConfig::alpha, moderate},
    {"beta", "between -1e30 and 1e30", &MoeConfig::beta, moderate},
    {"limit", "0 or more (infinity is no limit)", &MoeConfig::limit, [](double v) { return v >= 0; }},
    {"norm_eps", "2^-100 to 1", &MoeConfig::norm_eps, [](double v) { return v >= 0x1p-100 && v <= 1; }},
};

// What the format of the experts' weights asks of other fields.
Status check_format(const MoeConfig& c) {
  const WeightFormat format{c.expert_w, c.expert_scales};
  if (!format.exists())
    return invalid(
        "expert_w and expert_scales: wanted bf16, e2m1 with mx or nv, or e4m3 with mx, blocks or rows, "
        "found " +
        text(format));
  const bool latent = c.latent > 0;
  const std::pair<const char*, int64_t> widths[] = {
      {latent ? "latent" : "hidden", latent ? c.latent : c.hidden}, {"intermediate", c.intermediate}};
  for (const auto& [name, width] : widths)
    if (width % format.width_step() != 0)
      return invalid(std::string(name) + ": wanted a multiple of " + std::to_string(format.width_step()) +
                     " (blocks of " + text(format) + "), found " + std::to_string(width));
  return {};
}

}  // namespace

Status check_ranges(const MoeConfig& c) {
  for (const IntegerRange& r : kIntegers)
    if (c.*r.field < r.least || c.*r.field > r.most)
      return invalid(std::string(r.name) + ": wanted " + std::to_string(r.least) + " to " +
                     std::to_string(r.most) + ", found " + std::to_string(c.*r.field));
  for (const RealRange& r : kReals)
    if (!r.ok(c.*r.field))
      return invalid(std::string(r.name) + ": wanted a number " + std::string(r.wanted) + ", found " +
                     number_text(c.*r.field));
  if (c.top_k > c.experts)
    return invalid("top_k: wanted 1 to " + std::to_string(c.experts) + " (experts), found " +
                   std::to_string(c.top_k));
  if (c.method == RoutingMethod::kHash && c.hash_vocab == 0)
    return invalid("hash_vocab: wanted 1 or more with method=hash, found 0");
  return check_format(c);
}

}  // namespace sluice
