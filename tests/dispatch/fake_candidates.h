// Candidates with fixed answers, for tests of dispatch.
#pragma once
#include "dispatch/plan.h"
#include "ops/router_gemm.h"

namespace sluice::test {

using Gemm = RouterGemm;

inline Refusal accept(const Gemm::Problem&, const DeviceInfo&) { return {}; }
inline Refusal few_tokens(const Gemm::Problem& p, const DeviceInfo&) {
  Refusal r;
  r.need(p.tokens <= 8, "tokens <= 8 (a test)", "tokens", p.tokens);
  r.need(p.hidden % 2 == 0, "hidden % 2 == 0 (a test)", "hidden", p.hidden);
  return r;
}
// One kernel's cost does not depend on the tokens, the other's does.
inline double flat(const Gemm::Problem&, const DeviceInfo&) { return 10; }
inline double steep(const Gemm::Problem& p, const DeviceInfo&) { return static_cast<double>(p.tokens); }
inline size_t scratch(const Gemm::Problem& p, const DeviceInfo&) { return static_cast<size_t>(p.tokens) * 4; }
inline Status nothing(const Gemm::Problem&, const Gemm::Args&, Workspace, Stream) { return {}; }

inline Candidate<Gemm> fake(std::string_view name) {
  return {.name = name,
          .backend = Backend::kCpu,
          .supports = accept,
          .cost_us = flat,
          .workspace_bytes = scratch,
          .enqueue = nothing};
}

inline DeviceInfo fake_device() { return {.name = "fake", .backend = Backend::kCpu}; }

}  // namespace sluice::test
