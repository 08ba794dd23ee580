// Fields that ask for something that Sluice does not support.
#pragma once
#include "server/requests/fields.h"

namespace sluice {

// Rejects fields that no endpoint supports, unless their values mean "off", and marks fields without effect as read.
void refuse_unsupported(ApiFields* fields);
// Rejects fields that requests of this kind do not support, but others do.
void refuse_unsupported_of(ApiKind kind, ApiFields* fields);

}  // namespace sluice
