#include "backends/cpu/device.h"

namespace sluice::cpu {

#define SLUICE_CANDIDATE(Op, object) extern const Candidate<Op> object;
#include "backends/cpu/candidates.def"
#undef SLUICE_CANDIDATE

const Catalog& catalog() {
  static const Catalog tables = [] {
    Catalog out;
#define SLUICE_CANDIDATE(Op, object) out.add<Op>(object);
#include "backends/cpu/candidates.def"
#undef SLUICE_CANDIDATE
    return out;
  }();
  return tables;
}

}  // namespace sluice::cpu
