#include "cases/mask_logits.h"

#include "harness/conformance.h"

namespace sluice::test {

INSTANTIATE_TYPED_TEST_SUITE_P(MaskLogits, Conformance, MaskLogits);

}  // namespace sluice::test
