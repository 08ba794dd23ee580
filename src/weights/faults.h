// Weights that are not finite numbers, or that not every layout can hold.
#pragma once
#include <string>

#include "weights/row_span.h"

namespace sluice {

// Whether a row has a NaN or an infinity, or a scale that fragments cannot hold (ops/fragment_layout.h).
bool has_fault(WeightFormat format, const RowBytes& row, int64_t width);
// Names the first one of row `row` of a span: the tensor, the place, what was wanted and what was found.
std::string fault_text(const RowSpan& span, WeightFormat format, int64_t row, int64_t width);

}  // namespace sluice
