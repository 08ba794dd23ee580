// Finds weights that are not finite, and scales that the fragments layout cannot represent.
#pragma once
#include <string>

#include "weights/row_span.h"

namespace sluice {

// Whether a row has a NaN, an infinity, or a scale that fragments cannot represent (ops/fragment_layout.h).
bool has_fault(WeightFormat format, const RowBytes& row, int64_t width);
// Error message for the first fault in row `row` of a span: the tensor, the position, what was wanted and
// found.
std::string fault_text(const RowSpan& span, WeightFormat format, int64_t row, int64_t width);

}  // namespace sluice
