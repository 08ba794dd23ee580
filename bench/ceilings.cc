#include "ceilings.h"

#include <cblas.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/random.h"

namespace sluice::bench {
namespace {

// One block of random numbers repeats, because generating all of them would take longer than multiplying them.
void fill(float* out, int64_t count) {
  std::vector<float> some(1 << 16);
  Random random(1);
  for (float& v : some) v = static_cast<float>(random.normal());
  for (int64_t i = 0; i < count; i += static_cast<int64_t>(some.size()))
    std::copy_n(some.begin(), std::min<int64_t>(static_cast<int64_t>(some.size()), count - i), out + i);
}

}  // namespace

SgemmExperts::SgemmExperts(const ExpertShape& shape, int threads) : shape_(shape) {
  openblas_set_num_threads(threads);
  const int64_t count = shape.experts * 3 * shape.features * shape.width;
  weights_ = static_cast<float*>(std::aligned_alloc(4096, static_cast<size_t>(count) * sizeof(float)));
  if (weights_) fill(weights_, count);
}

SgemmExperts::~SgemmExperts() { std::free(weights_); }

Sample SgemmExperts::run(std::span<const int32_t> rows_of_expert, int64_t runs) {
  const int64_t rows_max = *std::max_element(rows_of_expert.begin(), rows_of_expert.end());
  std::vector<float> x(static_cast<size_t>(rows_max * shape_.width)),
      gates(static_cast<size_t>(rows_max * 2 * shape_.features));
  std::vector<float> y(x.size());
  fill(x.data(), static_cast<int64_t>(x.size()));
  // y [rows, n] = x [rows, k] times w [n, k] transposed.
  const auto multiply = [](const float* in, const float* w, float* out, int64_t rows, int64_t n, int64_t k) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<int>(rows), static_cast<int>(n),
                static_cast<int>(k), 1, in, static_cast<int>(k), w, static_cast<int>(k), 0, out,
                static_cast<int>(n));
  };
  const auto work = [&](int64_t i) {
    for (int64_t at = 0; at < shape_.experts; ++at) {
      // Each run starts at a different expert, so that runs of few rows do not find their weights in cache.
      const int64_t rows = rows_of_expert[static_cast<size_t>(at)], e = (at + 5 * i) % shape_.experts;
      if (rows == 0) continue;
      const float* w = weights_ + e * 3 * shape_.features * shape_.width;
      multiply(x.data(), w, gates.data(), rows, 2 * shape_.features, shape_.width);
      multiply(gates.data(), w + 2 * shape_.features * shape_.width, y.data(), rows, shape_.width,
               shape_.features);
    }
  };
  return measure([](int64_t) {}, work, runs, 0);
}

}  // namespace sluice::bench
