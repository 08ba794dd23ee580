#include "cases/adjust_logits.h"

#include "harness/conformance.h"

namespace sluice::test {

INSTANTIATE_TYPED_TEST_SUITE_P(AdjustLogits, Conformance, AdjustLogits);

}  // namespace sluice::test
