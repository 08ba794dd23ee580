// A filter whose every token matters to all that follow, and requests that have one.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "harness/engine_runs.h"
#include "serve/token_filter.h"

namespace sluice::test {

// A token may come if it and the sum of those before leave one of a few remainders: every token matters to all that follow.
class SumFilter final : public TokenFilter {
 public:
  explicit SumFilter(int32_t modulus, int32_t vocab = 101) : modulus_(modulus), vocab_(vocab) {}
  bool may_come(int32_t id) const { return (sum_ + 7 * id) % modulus_ == 1; }
  void allowed(std::span<uint32_t> bits) override {
    EXPECT_EQ(std::ssize(bits), (vocab_ + 31) / 32);
    std::fill(bits.begin(), bits.end(), 0u);
    for (int32_t id = 0; id < vocab_; ++id)
      if (may_come(id)) bits[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
  }
  void accept(int32_t id) override {
    sum_ += 3 * id + 1;
    accepted_.push_back(id);
  }
  const std::vector<int32_t>& accepted() const { return accepted_; }

 private:
  int32_t modulus_, vocab_;
  int64_t sum_ = 0;
  std::vector<int32_t> accepted_;
};

inline void expect_kept(const std::vector<int32_t>& ids, int32_t modulus) {
  SumFilter filter(modulus);
  for (const int32_t id : ids) {
    ASSERT_TRUE(filter.may_come(id));
    filter.accept(id);
  }
}

// adjusted_requests(), some of them with a filter, by modulus.
struct Filtered {
  std::vector<Request> requests;
  std::vector<int32_t> moduli;  // 0: none
};
inline Filtered filtered_requests(int64_t prompts = 101, int32_t vocab = 101) {
  Filtered out{.requests = adjusted_requests(prompts), .moduli = {5, 0, 3, 9, 0}};
  for (size_t i = 0; i < out.requests.size(); ++i)
    if (out.moduli[i] > 0) out.requests[i].filter = std::make_shared<SumFilter>(out.moduli[i], vocab);
  return out;
}

}  // namespace sluice::test
