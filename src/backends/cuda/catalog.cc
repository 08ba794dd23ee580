#include "backends/cuda/device.h"

namespace sluice::cuda {

#define SLUICE_CANDIDATE(Op, object) extern const Candidate<Op> object;
#include "backends/cuda/candidates.def"
#undef SLUICE_CANDIDATE

const Catalog& catalog() {
  static const Catalog tables = [] {
    Catalog out;
#define SLUICE_CANDIDATE(Op, object) out.add<Op>(object);
#include "backends/cuda/candidates.def"
#undef SLUICE_CANDIDATE
    return out;
  }();
  return tables;
}

}  // namespace sluice::cuda
