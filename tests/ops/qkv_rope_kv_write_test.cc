#include "cases/qkv_rope_kv_write.h"

#include "harness/conformance.h"

namespace sluice::test {

INSTANTIATE_TYPED_TEST_SUITE_P(QkvRopeKvWrite, Conformance, QkvRopeKvWrite);

}  // namespace sluice::test
