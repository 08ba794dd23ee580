#include "cases/kv_write.h"

#include "harness/conformance.h"

namespace sluice::test {

INSTANTIATE_TYPED_TEST_SUITE_P(KvWrite, Conformance, KvWrite);

}  // namespace sluice::test
