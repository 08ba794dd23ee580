#include "cases/embedding.h"

#include "harness/conformance.h"

namespace sluice::test {

INSTANTIATE_TYPED_TEST_SUITE_P(Embedding, Conformance, Embedding);

}  // namespace sluice::test
