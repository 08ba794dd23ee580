// Descriptors of the CUDA kernels for tests that need no GPU.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "backends/cuda/device.h"
#include "dispatch/decide.h"
#include "dispatch/explain.h"

namespace sluice::test {

inline DeviceInfo h200() { return known_device("h200").value(); }

template <class Op>
const Candidate<Op>& card(std::string_view name) {
  for (const Candidate<Op>* c : cuda::catalog().table<Op>())
    if (c->name == name) return *c;
  ADD_FAILURE() << name << " is not registered";
  return *cuda::catalog().table<Op>().front();
}

template <class Op>
std::string refusal(std::string_view name, const typename Op::Problem& problem,
                    const DeviceInfo& device = h200()) {
  EXPECT_TRUE(Op::validate(problem).accepted()) << Op::validate(problem).line();
  return card<Op>(name).supports(problem, device).line();
}

}  // namespace sluice::test
