#include "cases/expert_gemm.h"

#include "harness/conformance.h"

namespace sluice::test {

INSTANTIATE_TYPED_TEST_SUITE_P(ExpertGemm, Conformance, ExpertGemm);

}  // namespace sluice::test
