// A device, buffers and messages for tests that use the library only through its C ABI.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "sluice/sluice.h"

namespace sluice::test {

// A message buffer that is initially empty and converts to a string.
struct Message {
  Message() = default;
  Message(const Message&) = delete;  // `text` points into it
  Message& operator=(const Message&) = delete;
  char data[4096] = "";
  sluice_text text{data, sizeof data, 0};
  operator sluice_text*() { return &text; }  // NOLINT: passed where the C ABI takes a buffer
  std::string str() const { return data; }
};

struct CapiDevice {
  explicit CapiDevice(int32_t threads = 2) {
    sluice_device_options options = SLUICE_DEVICE_OPTIONS_INIT;
    options.threads = threads;
    Message error;
    EXPECT_EQ(sluice_open(&options, &device, error), SLUICE_OK) << error.str();
  }
  ~CapiDevice() { sluice_close(device); }
  CapiDevice(const CapiDevice&) = delete;
  CapiDevice& operator=(const CapiDevice&) = delete;
  sluice_stream stream() const { return sluice_device_stream(device); }
  sluice_device* device = nullptr;
};

// The first address from `memory` on that is aligned for a workspace.
inline char* aligned(char* memory) {
  return memory + (256 - reinterpret_cast<uintptr_t>(memory) % 256) % 256;
}

// A small gate: three tokens, five experts, with a bias.
struct CapiGate {
  static constexpr const char* kProblem = "tokens=3 experts=5 hidden=7 x=f32 w=f32 y=f32 bias=1";
  std::vector<float> x = std::vector<float>(21), w = std::vector<float>(35), bias = std::vector<float>(5),
                     y = std::vector<float>(15, -1.f);
  std::vector<sluice_arg> args;
  std::vector<char> scratch;
  CapiGate() {
    for (size_t i = 0; i < x.size(); ++i) x[i] = 0.25f * static_cast<float>(i) - 2;
    for (size_t i = 0; i < w.size(); ++i) w[i] = 1.f / static_cast<float>(i + 1);
    for (size_t i = 0; i < bias.size(); ++i) bias[i] = static_cast<float>(i);
    args = {{"y", tensor(y, {3, 5})},
            {"bias", tensor(bias, {5})},
            {"w", tensor(w, {5, 7})},
            {"x", tensor(x, {3, 7})}};
  }
  static sluice_tensor tensor(std::vector<float>& data, std::vector<int64_t> shape) {
    return sluice_contiguous(data.data(), SLUICE_F32, static_cast<int32_t>(shape.size()), shape.data());
  }
  sluice_tensor& at(const std::string& name) {
    for (sluice_arg& a : args)
      if (name == a.name) return a.tensor;
    return args.front().tensor;
  }
  sluice_launch launch(const CapiDevice& device, size_t workspace_bytes) {
    scratch.resize(workspace_bytes + 256);
    return {args.data(), args.size(), aligned(scratch.data()), workspace_bytes, device.stream()};
  }
};

}  // namespace sluice::test
