#include "cases/top_logprobs.h"

#include "harness/conformance.h"

namespace sluice::test {

INSTANTIATE_TYPED_TEST_SUITE_P(TopLogprobs, Conformance, TopLogprobs);

}  // namespace sluice::test
