#include "ceilings.h"

#include <cblas.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "backends/cpu/pool.h"
#include "base/random.h"

namespace sluice::bench {
namespace {

constexpr int64_t kBuffer = int64_t{1} << 30;  // the largest last-level caches hold half of that

// Sixteen chains, so that additions do not limit; `ahead` bytes are asked for before they are needed.
uint64_t sum_of(const uint64_t* words, int64_t count, int64_t ahead) {
  uint64_t sums[16] = {};
  for (int64_t i = 0; i + 16 <= count; i += 16) {
    if (ahead) {
      __builtin_prefetch(reinterpret_cast<const char*>(words + i) + ahead);
      __builtin_prefetch(reinterpret_cast<const char*>(words + i) + ahead + 64);
    }
    for (int j = 0; j < 16; ++j) sums[j] += words[i + j];
  }
  uint64_t sum = 0;
  for (uint64_t s : sums) sum += s;
  return sum;
}

// Random numbers would take longer to make than to multiply, so one stretch of them repeats.
void fill(float* out, int64_t count) {
  std::vector<float> some(1 << 16);
  Random random(1);
  for (float& v : some) v = static_cast<float>(random.normal());
  for (int64_t i = 0; i < count; i += static_cast<int64_t>(some.size()))
    std::copy_n(some.begin(), std::min<int64_t>(static_cast<int64_t>(some.size()), count - i), out + i);
}

}  // namespace

Result<double> read_bytes_per_us(Device& device) {
  // As the weights are allocated, so that pages are no reason for a difference.
  Result<void*> memory = device.allocate(kBuffer);
  if (!memory.ok()) return memory.status();
  const int threads = device.info().cores;
  const std::span<uint64_t> buffer(static_cast<uint64_t*>(memory.value()), kBuffer / sizeof(uint64_t));
  std::fill(buffer.begin(), buffer.end(), 1);
  cpu::ThreadPool pool(threads);
  double best = 0;
  std::vector<uint64_t> sums(static_cast<size_t>(threads) * 8);
  for (int64_t ahead : {0, 1024}) {
    constexpr int64_t kPiece = 1 << 17;  // words: 1 MiB
    const auto read = [&](int64_t) {
      pool.run(static_cast<int64_t>(buffer.size()) / kPiece, 1, [&](int64_t begin, int64_t end, int thread) {
        sums[static_cast<size_t>(thread) * 8] +=
            sum_of(buffer.data() + begin * kPiece, (end - begin) * kPiece, ahead);
      });
    };
    const Sample s = measure([](int64_t) {}, read, 5, 0);
    best = std::max(best, static_cast<double>(kBuffer) / s.best_us);
  }
  device.release(memory.value());
  return best;
}

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
      // Every run starts at another expert, so that few rows do not stay in cache.
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
