// Token filters whose state depends on every token, and requests with such filters.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "engine/token_filter.h"
#include "harness/engine_runs.h"

namespace sluice::test {

// Allows a token if a weighted sum of it and all previous tokens has remainder 1.
class SumFilter : public TokenFilter {
 public:
  explicit SumFilter(int32_t modulus, int32_t vocab = 101) : modulus_(modulus), vocab_(vocab) {}
  bool may_come(int32_t id) const { return (sum_ + 7 * id) % modulus_ == 1; }
  Status allowed(std::span<uint32_t> bits, const std::stop_token&) override {
    EXPECT_EQ(std::ssize(bits), (vocab_ + 31) / 32);
    std::fill(bits.begin(), bits.end(), 0u);
    for (int32_t id = 0; id < vocab_; ++id)
      if (may_come(id)) bits[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
    return {};
  }
  Status accept(int32_t id, const std::stop_token&) override {
    sum_ += 3 * id + 1;
    accepted_.push_back(id);
    return {};
  }
  std::unique_ptr<TokenFilter> copy() const override { return std::make_unique<SumFilter>(*this); }
  const std::vector<int32_t>& accepted() const { return accepted_; }

 private:
  int32_t modulus_, vocab_;
  int64_t sum_ = 0;
  std::vector<int32_t> accepted_;
};

// A SumFilter that calls `does` before each mask with the number of tokens so far; `does` may change the
// mask.
class DoingFilter final : public SumFilter {
 public:
  using Does = std::function<Status(int64_t tokens, std::span<uint32_t> bits, const std::stop_token& stop)>;
  DoingFilter(int32_t modulus, Does does) : SumFilter(modulus), does_(std::move(does)) {}
  std::unique_ptr<TokenFilter> copy() const override { return std::make_unique<DoingFilter>(*this); }
  Status allowed(std::span<uint32_t> bits, const std::stop_token& stop) override {
    SLUICE_TRY(SumFilter::allowed(bits, stop));
    return does_(std::ssize(accepted()), bits, stop);
  }

 private:
  Does does_;
};

inline void expect_kept(const std::vector<int32_t>& ids, int32_t modulus) {
  SumFilter filter(modulus);
  for (const int32_t id : ids) {
    ASSERT_TRUE(filter.may_come(id));
    EXPECT_TRUE(filter.accept(id, {}).ok());
  }
}

// adjusted_requests(), some of them with a filter, and the filters' moduli.
struct Filtered {
  std::vector<Request> requests;
  std::vector<int32_t> moduli;  // 0: no filter
};
inline Filtered filtered_requests(int64_t prompts = 101, int32_t vocab = 101) {
  Filtered out{.requests = adjusted_requests(prompts), .moduli = {5, 0, 3, 9, 0}};
  for (size_t i = 0; i < out.requests.size(); ++i)
    if (out.moduli[i] > 0) out.requests[i].filter = std::make_shared<SumFilter>(out.moduli[i], vocab);
  return out;
}

}  // namespace sluice::test
