#include "backends/cuda/device.h"

namespace sluice::cuda {

#if !defined(SLUICE_CARDS_TOGETHER)  // otherwise the files that define the candidates precede this one
#define SLUICE_CANDIDATE(Op, object) extern const Candidate<Op> object;
#include "backends/cuda/candidates.def"
#undef SLUICE_CANDIDATE
#endif

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

Status accept_capability(std::string_view gpu, int major, int minor) {
  if (major == 9 && minor == 0) return {};
  return unsupported("cuda: wanted a GPU of compute capability 9.0 (H100, H200, H20, GH200), found " +
                     std::string(gpu) + " of " + std::to_string(major) + "." + std::to_string(minor) +
                     "; the kernels are compiled for sm_90a and run nowhere else");
}

}  // namespace sluice::cuda
