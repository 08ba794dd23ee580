#include "ops/weight_format.h"

namespace sluice {

std::string text(WeightFormat f) {
  std::string out = text(f.w);
  if (f.scales != WeightScales::kMx || f.w == DType::kE4M3)
    out += " with scales=" + std::string(word(f.scales));
  return out;
}

}  // namespace sluice
