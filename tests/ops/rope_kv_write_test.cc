#include "cases/rope_kv_write.h"

#include "harness/conformance.h"

namespace sluice::test {

INSTANTIATE_TYPED_TEST_SUITE_P(RopeKvWrite, Conformance, RopeKvWrite);

}  // namespace sluice::test
