// Data recorded by the scripts in tools/parity: results in float64, and the effect of bf16 rounding on them.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "harness/test_data.h"
#include "weights/checkpoint.h"

namespace sluice::test {

// Data of the shipped model.
inline std::string recorded_file() { return test_data("parity/sluice-16e-tiny.safetensors"); }

// The recording of one prompt.
struct Recorded {
  std::vector<int32_t> ids, greedy;
  std::vector<int64_t> positions;
  std::vector<float> logits, noise, noise_most, gap;
};

template <class T>
std::vector<T> values(const Checkpoint& file, const std::string& name) {
  const auto found = file.find(name);
  EXPECT_TRUE(found.ok()) << found.status().message;
  if (!found.ok()) return {};
  std::vector<T> out(static_cast<size_t>(found.value()->bytes) / sizeof(T));
  std::memcpy(out.data(), found.value()->data, out.size() * sizeof(T));
  return out;
}

// Rows of any width: their values, and per row the root mean square and the maximum of the effect of
// rounding.
struct RecordedRows {
  std::vector<float> value, noise, noise_most;
};
inline RecordedRows recorded_rows(const Checkpoint& file, const std::string& name) {
  return {.value = values<float>(file, name),
          .noise = values<float>(file, name + ".noise"),
          .noise_most = values<float>(file, name + ".noise_most")};
}

inline Recorded recorded(const Checkpoint& file, const std::string& name) {
  const auto positions = values<int32_t>(file, name + ".positions");
  return {.ids = values<int32_t>(file, name + ".ids"),
          .greedy = values<int32_t>(file, name + ".greedy"),
          .positions = {positions.begin(), positions.end()},
          .logits = values<float>(file, name + ".logits"),
          .noise = values<float>(file, name + ".noise"),
          .noise_most = values<float>(file, name + ".noise_most"),
          .gap = values<float>(file, name + ".gap")};
}

inline constexpr const char* kPrompts[] = {"short", "sum", "turns", "other", "greeting", "long"};

// Root mean square and maximum of one row's differences, relative to the allowed error.
struct Distance {
  double rms = 0, most = 0;
};
inline Distance distance(const Recorded& r, const std::vector<float>& got, size_t row, double noise_scale) {
  const size_t vocab = r.logits.size() / r.positions.size();
  double squares = 0, most = 0;
  for (size_t i = row * vocab; i < (row + 1) * vocab; ++i) {
    const double d = std::abs(static_cast<double>(got[i]) - static_cast<double>(r.logits[i]));
    squares += d * d;
    most = std::max(most, d);
  }
  return {std::sqrt(squares / static_cast<double>(vocab)) / (noise_scale * r.noise[row]),
          most / (noise_scale * r.noise_most[row])};
}

}  // namespace sluice::test
