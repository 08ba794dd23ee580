#include "cases/linear.h"

#include "harness/conformance.h"

namespace sluice::test {

INSTANTIATE_TYPED_TEST_SUITE_P(Linear, Conformance, Linear);

}  // namespace sluice::test
