#include "cases/pack_experts.h"

#include "harness/conformance.h"

namespace sluice::test {

INSTANTIATE_TYPED_TEST_SUITE_P(PackExperts, Conformance, PackExperts);

}  // namespace sluice::test
