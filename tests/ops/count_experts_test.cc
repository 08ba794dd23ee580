#include "cases/count_experts.h"

#include "harness/conformance.h"

namespace sluice::test {

INSTANTIATE_TYPED_TEST_SUITE_P(CountExperts, Conformance, CountExperts);

}  // namespace sluice::test
