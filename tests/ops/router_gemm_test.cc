#include "cases/router_gemm.h"

#include "harness/conformance.h"

namespace sluice::test {

INSTANTIATE_TYPED_TEST_SUITE_P(RouterGemm, Conformance, RouterGemm);

}  // namespace sluice::test
