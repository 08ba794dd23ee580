#include "cases/take_tokens.h"

#include "harness/conformance.h"

namespace sluice::test {

INSTANTIATE_TYPED_TEST_SUITE_P(TakeTokens, Conformance, TakeTokens);

}  // namespace sluice::test
