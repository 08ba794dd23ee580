// The part of sample_scan that goes through the largest logits of a row. Scalar, the same for every vector width.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>

#include "backends/cpu/kernels/logit_entry.h"
#include "base/random.h"
#include "ops/sample.h"

namespace sluice::cpu {

// The results for kLogitChunk logits of a row.
struct Chunk {
  float largest;
  double plain, tempered;  // sums of e^(x - base), and of e^((x - base) / temperature)
};

struct RowSums {
  float largest;
  int64_t largest_chunk;   // the first chunk that contains the largest logit
  double plain, tempered;  // totals over all chunks; meaningless unless `largest` is finite
};

inline RowSums row_sums(const Chunk* chunks, int64_t count) {
  RowSums out{chunks[0].largest, 0, 0, 0};
  for (int64_t c = 0; c < count; ++c) {
    if (chunks[c].largest > out.largest) out.largest = chunks[c].largest, out.largest_chunk = c;
    out.plain += chunks[c].plain;
    out.tempered += chunks[c].tempered;
  }
  return out;
}

struct DrawParams {
  double temperature, top_p, min_p;
  int64_t top_k;
  double u;
};

inline float temperature_of(const Sample::Problem& p, const Sample::Args& a, int64_t row) {
  return p.greedy ? 0.f : a.temperature.as<const float>()[row];
}
inline DrawParams draw_params(const Sample::Args& a, int64_t row) {
  const auto seed = static_cast<uint64_t>(a.seed.as<const int64_t>()[row]);
  const auto step = static_cast<uint64_t>(a.step.as<const int64_t>()[row]);
  return {a.temperature.as<const float>()[row], a.top_p.as<const float>()[row],
          a.min_p.as<const float>()[row], a.top_k.as<const int32_t>()[row], uniform(seed, step)};
}

// Relative to the largest weight, which is 1.
inline double weight_of(const DrawParams& p, float largest, const Entry& e) {
  return std::exp((static_cast<double>(e.logit) - largest) / p.temperature);
}

inline double mass_of(const DrawParams& p, float largest, const Entry* entries, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += weight_of(p, largest, entries[i]);
  return sum;
}

enum class Reach : uint8_t { kSome, kAll };
// The first tokens in sampling order. kAll: no other token can be sampled.
struct Leaders {
  const Entry* entries;
  int64_t count;
  Reach reach;
};

// The number of leaders that are kept, and their mass. count < 0: more tokens than the leaders are kept.
struct Cut {
  int64_t count;
  double mass;
};

inline Cut cut_of(const DrawParams& p, float largest, double total, const Leaders& leaders) {
  const bool by_sum = p.top_p<1, by_share = p.min_p> 0;
  if (!by_sum && !by_share) return {leaders.count, total};
  const double target = by_sum ? p.top_p * total : std::numeric_limits<double>::infinity();
  double running = 0;
  for (int64_t i = 0; i < leaders.count; ++i) {
    const double weight = weight_of(p, largest, leaders.entries[i]);
    if (i > 0 && by_share && weight < p.min_p) return {i, running};
    running += weight;
    if (running >= target) return {i + 1, running};
  }
  if (leaders.reach == Reach::kAll) return {leaders.count, running};
  return {-1, 0};
}

// The place of the sampled token, or -1 if it is not among these leaders. `total` is the mass before top_p and min_p.
inline int64_t draw(const DrawParams& p, float largest, double total, const Leaders& leaders) {
  const Cut cut = cut_of(p, largest, total, leaders);
  if (cut.count < 0) return -1;
  int64_t last = 0;  // the last token that can be sampled, in case rounding leaves the sum below u
  double running = 0;
  for (int64_t i = 0; i < cut.count; ++i) {
    const double weight = weight_of(p, largest, leaders.entries[i]);
    if (weight > 0) last = i;
    running += weight;
    if (running > p.u * cut.mass) return i;
  }
  const bool ends_here =
      cut.count < leaders.count || leaders.reach == Reach::kAll || p.top_p < 1 || p.min_p > 0;
  return ends_here ? last : -1;
}

}  // namespace sluice::cpu
