#include "cases/latent_attention.h"

#include "harness/conformance.h"

namespace sluice::test {

INSTANTIATE_TYPED_TEST_SUITE_P(LatentAttention, Conformance, LatentAttention);

}  // namespace sluice::test
