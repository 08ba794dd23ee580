// Paged attention by blocks of positions with an online softmax. Up to 32 queries
// (the heads of a kv head, for adjacent rows) share each load of a key or a value.
//
// Wins    always: it is the only kernel of Attention on a CPU. Scores stay in the L1 cache, and a context is divided into parts of
//         1024 positions, so that many threads can work on one sequence.
// Loses   time with one query head per kv head and one row: queries are computed four at a time, so three quarters of the sums are
//         discarded. The loads, which are the bottleneck there, are not repeated.
// Limits  none beyond the contract.
// Source  original; the online softmax is Milakov and Gimelshein, "Online normalizer calculation for softmax"
//         (2018). The contract is ops/attention.h.
//
// Bits    blocks and parts start at fixed positions, and a masked position adds exactly zero. So a row's bits
//         depend only on its own sequence. The same function joins the parts in order, whether one item or
//         many items computed them.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backends/cpu/kernels/attention_paged.cc"
#include "hwy/foreach_target.h"  // must come before highway.h
#include "hwy/highway.h"
//
#include <cmath>
#include <limits>

#include "backends/cpu/card.h"
#include "backends/cpu/kernels/attention_shape.h"
#include "backends/cpu/scratch.h"
#include "backends/cpu/simd/dispatch.h"
#include "backends/cpu/simd/dot.h"
#include "backends/cpu/simd/e4m3.h"
#include "backends/cpu/simd/four_sums.h"
#include "hwy/cache_control.h"
#include "hwy/contrib/math/math-inl.h"
#include "ops/attention.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::cpu::HWY_NAMESPACE {
namespace {

using Vector = hn::Vec<F32>;
constexpr int64_t kBlock = kAttentionBlock;
constexpr float kNothing = -std::numeric_limits<float>::infinity();

// A weighted sum of values before the division by its weights; a weight is e^(score - largest).
struct Online {
  float largest = kNothing;
  float sum = 0;
  float* values = nullptr;  // [padded_dim]
};

// The factor from weights relative to `from` to weights relative to `to`.
float rescale(float from, float to) { return from == to ? 1.f : std::exp(from - to); }

// kSome: head_dim ends within a vector. It is known at compile time, which saves the inner loops one branch per load.
enum class Tail : uint8_t { kNone, kSome };

// Returns Lanes(F32()) elements of a row that has `left` elements; missing elements are zero. Never reads past the row.
template <Tail kTail, class T>
HWY_INLINE Vector load_part(const T* p, int64_t left) {
  const F32 d;
  if (kTail == Tail::kNone || left >= static_cast<int64_t>(hn::Lanes(d))) return load_f32(p);
  HWY_ALIGN float tail[hn::MaxLanes(d)] = {};
  for (int64_t i = 0; i < left; ++i) tail[i] = scalar_f32(p[i]);
  return hn::Load(d, tail);
}

// scores[x][i] = q_x . k_i for four queries and keys [first, end), two keys at a time.
template <Tail kTail, class T>
void score_quad(const float* q, int64_t stride, const T* const* keys, int64_t first, int64_t end, int64_t dim,
                float* scores) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = first; i < end; i += 2) {
    const bool two = i + 1 < end;
    const T* k0 = keys[i];
    const T* k1 = keys[two ? i + 1 : i];
    auto a0 = hn::Zero(d), a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
    for (int64_t at = 0; at < dim; at += lanes) {
      const auto u = load_part<kTail>(k0 + at, dim - at), v = load_part<kTail>(k1 + at, dim - at);
      const auto q0 = hn::LoadU(d, q + at), q1 = hn::LoadU(d, q + at + stride);
      const auto q2 = hn::LoadU(d, q + at + 2 * stride), q3 = hn::LoadU(d, q + at + 3 * stride);
      a0 = hn::MulAdd(u, q0, a0), a1 = hn::MulAdd(u, q1, a1);
      a2 = hn::MulAdd(u, q2, a2), a3 = hn::MulAdd(u, q3, a3);
      b0 = hn::MulAdd(v, q0, b0), b1 = hn::MulAdd(v, q1, b1);
      b2 = hn::MulAdd(v, q2, b2), b3 = hn::MulAdd(v, q3, b3);
    }
    store_sums(a0, a1, a2, a3, kBlock, scores + i);
    if (two) store_sums(b0, b1, b2, b3, kBlock, scores + i + 1);
  }
}

// e^x for x <= 0; NaN stays NaN (Highway's own function gives 0).
HWY_INLINE Vector weight(Vector x) {
  const F32 d;
  const auto nan = hn::IsNaN(x);
  const auto safe = hn::IfThenElse(nan, hn::Zero(d), hn::Max(x, hn::Set(d, -200.f)));
  return hn::IfThenElse(nan, x, hn::Exp(d, safe));
}

// Converts the scores [first, end) of one query to weights and adds them to `state`. Returns the factor
// for the values of `state`. Masks scores in whole vectors, from a multiple of the vector length on.
float weigh(float* scores, int64_t first, int64_t end, float scale, Online* state) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t begin = first / lanes * lanes, stop = (end + lanes - 1) / lanes * lanes;
  for (int64_t i = first; i < end; ++i) scores[i] *= scale;
  for (int64_t i = begin; i < first; ++i) scores[i] = kNothing;
  for (int64_t i = end; i < stop; ++i) scores[i] = kNothing;
  auto lane_max = hn::Set(d, kNothing);
  for (int64_t i = begin; i < stop; i += lanes) lane_max = hn::Max(lane_max, hn::LoadU(d, scores + i));
  const float here = hn::GetLane(hn::MaxOfLanes(d, lane_max));
  // if a score is NaN, its weight is NaN
  const float largest = here > state->largest ? here : state->largest;
  const auto base = hn::Set(d, largest == kNothing ? 0.f : largest);
  auto sum = hn::Zero(d);
  for (int64_t i = begin; i < stop; i += lanes) {
    const auto w = weight(hn::Sub(hn::LoadU(d, scores + i), base));
    hn::StoreU(w, d, scores + i);
    sum = hn::Add(sum, w);
  }
  const float factor = rescale(state->largest, largest);
  state->sum = state->sum * factor + hn::GetLane(hn::SumOfLanes(d, sum));
  state->largest = largest;
  return factor;
}

void multiply(float* values, int64_t dim, float factor) {
  const F32 d;
  for (int64_t at = 0; at < dim; at += static_cast<int64_t>(hn::Lanes(d)))
    hn::StoreU(hn::Mul(hn::LoadU(d, values + at), hn::Set(d, factor)), d, values + at);
}

// values += sum of w[i] v_i over [first, end) for one query.
template <class T>
void add_values(const float* w, const T* const* v, int64_t first, int64_t end, int64_t dim, float* values) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = first; i < end; ++i)
    for (int64_t at = 0; at < dim; at += lanes)
      hn::StoreU(hn::MulAdd(load_part<Tail::kSome>(v[i] + at, dim - at), hn::Set(d, w[i]),
                            hn::LoadU(d, values + at)),
                 d, values + at);
}

// The same for four queries, all of which attend to [first, end).
template <Tail kTail, class T>
void add_values_quad(const float* w, const T* const* v, int64_t first, int64_t end, int64_t dim,
                     int64_t stride, float* values) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t at = 0; at < dim; at += 2 * lanes) {
    // If a head has an odd number of vectors, the second one is padding.
    float* y0 = values + at;
    float* y1 = y0 + stride;
    float* y2 = y1 + stride;
    float* y3 = y2 + stride;
    const int64_t next = at + lanes < dim ? lanes : 0;
    auto a0 = hn::LoadU(d, y0), a1 = hn::LoadU(d, y1), a2 = hn::LoadU(d, y2), a3 = hn::LoadU(d, y3);
    auto b0 = hn::LoadU(d, y0 + next), b1 = hn::LoadU(d, y1 + next);
    auto b2 = hn::LoadU(d, y2 + next), b3 = hn::LoadU(d, y3 + next);
    for (int64_t i = first; i < end; ++i) {
      const auto s = load_part<kTail>(v[i] + at, dim - at),
                 t = load_part<kTail>(v[i] + at + next, dim - at - next);
      const auto w0 = hn::Set(d, w[i]), w1 = hn::Set(d, w[i + kBlock]);
      const auto w2 = hn::Set(d, w[i + 2 * kBlock]), w3 = hn::Set(d, w[i + 3 * kBlock]);
      a0 = hn::MulAdd(s, w0, a0), b0 = hn::MulAdd(t, w0, b0);
      a1 = hn::MulAdd(s, w1, a1), b1 = hn::MulAdd(t, w1, b1);
      a2 = hn::MulAdd(s, w2, a2), b2 = hn::MulAdd(t, w2, b2);
      a3 = hn::MulAdd(s, w3, a3), b3 = hn::MulAdd(t, w3, b3);
    }
    hn::StoreU(a0, d, y0), hn::StoreU(a1, d, y1), hn::StoreU(a2, d, y2), hn::StoreU(a3, d, y3);
    hn::StoreU(b0, d, y0 + next), hn::StoreU(b1, d, y1 + next);
    hn::StoreU(b2, d, y2 + next), hn::StoreU(b3, d, y3 + next);
  }
}

// Adds `part` to `total`.
void join(const Online& part, int64_t dim, Online* total) {
  const F32 d;
  const float largest = part.largest > total->largest ? part.largest : total->largest;
  const float old_factor = rescale(total->largest, largest), new_factor = rescale(part.largest, largest);
  const auto old_scale = hn::Set(d, old_factor), new_scale = hn::Set(d, new_factor);
  for (int64_t at = 0; at < dim; at += static_cast<int64_t>(hn::Lanes(d))) {
    const auto kept = hn::Mul(hn::LoadU(d, total->values + at), old_scale);
    hn::StoreU(hn::MulAdd(hn::LoadU(d, part.values + at), new_scale, kept), d, total->values + at);
  }
  total->sum = total->sum * old_factor + part.sum * new_factor;
  total->largest = largest;
}

// Adds the sink, divides, and rounds to y.
template <class T>
void finish(const Attention::Problem& p, const Attention::Args& a, Online total, int64_t head, T* y) {
  const F32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  float factor = 1;
  if (p.sinks) {
    const float sink = sink_of(p, a, head);
    const float largest = sink > total.largest ? sink : total.largest;
    factor = rescale(total.largest, largest);
    total.sum *= factor;
    if (sink != kNothing) total.sum += rescale(sink, largest) + (sink - sink);  // an infinite sink gives NaN
    total.largest = largest;
  }
  const bool nothing = total.largest == kNothing && total.sum == 0;
  const auto share = hn::Set(d, factor / total.sum);
  HWY_ALIGN float tail[hn::MaxLanes(d)];
  for (int64_t at = 0; at < p.head_dim; at += lanes) {
    const auto out = nothing ? hn::Zero(d) : hn::Mul(hn::LoadU(d, total.values + at), share);
    if (at + lanes <= p.head_dim) {
      store_f32(out, y + at);
    } else {
      hn::Store(out, d, tail);
      for (int64_t i = at; i < p.head_dim; ++i) store_scalar(tail[i - at], y + i);
    }
  }
}

// The present positions of one block of a sequence, in order. e4m3 rows
// are widened into `wide`, [2, kBlock, head_dim], once for all queries.
template <class T>
struct Block {
  int64_t begin, end, count = 0;
  int64_t position[kBlock];
  const T* keys[kBlock];
  const T* values[kBlock];

  Block(const Attention::Problem& p, const Attention::Args& a, int64_t sequence, int64_t kv_head,
        int64_t from, int64_t to, T* wide)
      : begin(from), end(to) {
    const int32_t* table = a.page_table.as<const int32_t>() + sequence * p.pages_per_seq;
    const bool narrow = p.cache == CacheType::kE4M3;
    const int64_t row_bytes = bytes_of(cache_dtype(p.cache, p.q), p.head_dim);
    int64_t row[kBlock];
    for (int64_t j = from; j < to; ++j) {
      const int64_t page = table[j / p.page_size];
      if (page < 0 || page >= p.pages) continue;
      row[count] = (page * p.kv_heads + kv_head) * p.page_size + j % p.page_size;
      // Pages are too far apart for the hardware prefetcher.
      for (const Tensor* cache : {&a.k_cache, &a.v_cache})
        for (int64_t i = 0; i < row_bytes; i += 64)
          hwy::Prefetch(cache->as<const std::byte>() + row[count] * row_bytes + i);
      position[count++] = j;
    }
    for (int64_t i = 0; i < count; ++i) {
      const auto row_of = [&](const Tensor& cache, T* to_row) -> const T* {
        if (!narrow) return cache.as<const T>() + row[i] * p.head_dim;
        return widen_row(cache.as<const E4M3>() + row[i] * p.head_dim, p.head_dim, to_row), to_row;
      };
      keys[i] = row_of(a.k_cache, wide + i * p.head_dim);
      values[i] = row_of(a.v_cache, wide + (kBlock + i) * p.head_dim);
    }
  }
  // The number of present positions below j.
  int64_t below(int64_t j) const {
    if (count == end - begin) return std::clamp<int64_t>(j - begin, 0, count);
    return std::lower_bound(position, position + count, j) - position;
  }
};

// The queries of one item: some heads of one kv head, for adjacent rows of one sequence.
template <class T>
struct Run {
  const Attention::Problem& p;
  const Attention::Args& a;
  const AttentionShape& shape;
  int64_t kv_head, head, heads;  // head: the first of `heads`
  int64_t row, rows;
  float* queries;                   // [kAttentionQueries, padded_dim]
  T* wide;                          // [2, kBlock, head_dim], for e4m3 caches
  Online state[kAttentionQueries];  // state of the current part
  RowSpan span[kAttentionQueries];  // span of each query
  int64_t first = 0, end = 0;       // positions to which any query attends
  int64_t count() const { return rows * heads; }
  int64_t row_of(int64_t m) const { return row + m / heads; }
  int64_t head_of(int64_t m) const { return head + m % heads; }

  // Widens the queries. Places after the last query of a quad repeat it; results of these places are not read.
  void load(float* values) {
    for (int64_t m = 0; m < (count() + 3) / 4 * 4; ++m) {
      const int64_t source = std::min(m, count() - 1);
      const T* from = a.q.row<const T>(row_of(source)) + head_of(source) * p.head_dim;
      float* to = queries + m * shape.padded_dim;
      for (int64_t i = 0; i < p.head_dim; ++i) to[i] = scalar_f32(from[i]);
      std::fill(to + p.head_dim, to + shape.padded_dim, 0.f);
      span[m] = row_span(p, a, row_of(source));
      state[m].values = values + m * shape.padded_dim;
    }
    first = span[0].first, end = span[count() - 1].end;  // both ends never decrease from row to row
  }

  template <Tail kTail>
  void take_block(const Block<T>& block, int64_t m) {
    alignas(64) float scores[4 * kBlock];
    int64_t low[4], high[4];
    for (int64_t x = 0; x < 4; ++x)
      low[x] = block.below(span[m + x].first), high[x] = block.below(span[m + x].end);
    const int64_t all_low = std::max(low[0], low[3]), all_high = std::min(high[0], high[3]);
    score_quad<kTail>(queries + m * shape.padded_dim, shape.padded_dim, block.keys, low[0], high[3],
                      p.head_dim, scores);
    const bool common = all_low < all_high;
    for (int64_t x = 0; x < 4; ++x) {
      if (low[x] >= high[x]) continue;
      Online& mine = state[m + x];
      const float* w = scores + x * kBlock;
      const float factor = weigh(scores + x * kBlock, low[x], high[x], static_cast<float>(p.scale), &mine);
      if (factor != 1) multiply(mine.values, p.head_dim, factor);
      add_values(w, block.values, low[x], common ? all_low : high[x], p.head_dim, mine.values);
    }
    if (!common) return;
    add_values_quad<kTail>(scores, block.values, all_low, all_high, p.head_dim, shape.padded_dim,
                           state[m].values);
    for (int64_t x = 0; x < 4; ++x)
      add_values(scores + x * kBlock, block.values, all_high, high[x], p.head_dim, state[m + x].values);
  }

  // Processes positions [begin, stop) of the context into an empty `state`.
  void take_part(int64_t begin, int64_t stop) {
    for (int64_t m = 0; m < (count() + 3) / 4 * 4; ++m) {
      state[m] = {kNothing, 0, state[m].values};
      std::fill_n(state[m].values, shape.padded_dim, 0.f);
    }
    const bool tail = p.head_dim % static_cast<int64_t>(hn::Lanes(F32())) != 0;
    const int64_t from = std::max(begin, first / kBlock * kBlock), to = std::min(stop, end);
    for (int64_t at = from; at < to; at += kBlock) {
      const Block<T> block(p, a, span[0].sequence, kv_head, at, std::min(at + kBlock, to), wide);
      for (int64_t m = 0; m < count(); m += 4)
        tail ? take_block<Tail::kSome>(block, m) : take_block<Tail::kNone>(block, m);
    }
  }
};

// Processes all parts and writes y.
template <class T>
void whole_context(Run<T>& run, float* totals) {
  Online total[kAttentionQueries];
  const int64_t width = run.shape.padded_dim;
  for (int64_t m = 0; m < run.count(); ++m) {
    total[m].values = totals + m * width;
    std::fill_n(total[m].values, width, 0.f);
  }
  for (int64_t at = run.first / kAttentionPart * kAttentionPart; at < run.end; at += kAttentionPart) {
    run.take_part(at, at + kAttentionPart);
    for (int64_t m = 0; m < run.count(); ++m)
      if (run.span[m].meets(at, at + kAttentionPart)) join(run.state[m], run.p.head_dim, &total[m]);
  }
  for (int64_t m = 0; m < run.count(); ++m)
    finish(run.p, run.a, total[m], run.head_of(m),
           run.a.y.template row<T>(run.row_of(m)) + run.head_of(m) * run.p.head_dim);
}

// The partial result of a query and a part.
float* partial_at(const Attention::Problem& p, const AttentionShape& s, float* partials, int64_t row,
                  int64_t head, int64_t part) {
  return partials + ((row * p.heads + head) * s.parts + part) * s.partial_floats();
}

// Computes one part and stores it for attention_join.
template <class T>
void one_part(Run<T>& run, int64_t part, float* partials) {
  const int64_t at = part * kAttentionPart;
  if (at >= run.end || at + kAttentionPart <= run.first) return;
  run.take_part(at, at + kAttentionPart);
  for (int64_t m = 0; m < run.count(); ++m) {
    if (!run.span[m].meets(at, at + kAttentionPart)) continue;
    float* out = partial_at(run.p, run.shape, partials, run.row_of(m), run.head_of(m), part);
    out[0] = run.state[m].largest;
    out[1] = run.state[m].sum;
    std::copy_n(run.state[m].values, run.shape.padded_dim, out + 2);
  }
}

// Item `index` of the items of all kv heads. Adjacent rows are divided where the sequence changes.
template <class T>
void item(const Attention::Problem& p, const Attention::Args& a, const AttentionShape& s, int64_t index,
          float* scratch, float* partials) {
  const int64_t part = index % s.parts, chunk = index / s.parts % s.chunks;
  const int64_t kv_head = index / s.parts / s.chunks % p.kv_heads;
  const int64_t block = index / s.parts / s.chunks / p.kv_heads;
  const int64_t row_end = std::min(p.tokens, (block + 1) * s.rows), offset = chunk * s.group_heads;
  const int64_t section = kAttentionQueries * s.padded_dim;
  for (int64_t row = block * s.rows, next; row < row_end; row = next) {
    const int64_t sequence = row_span(p, a, row).sequence;
    for (next = row + 1; next < row_end && row_span(p, a, next).sequence == sequence;) ++next;
    if (sequence < 0) continue;
    Run<T> run{.p = p,
               .a = a,
               .shape = s,
               .kv_head = kv_head,
               .head = kv_head * s.group + offset,
               .heads = std::min(s.group_heads, s.group - offset),
               .row = row,
               .rows = next - row,
               .queries = scratch,
               .wide = reinterpret_cast<T*>(scratch + 3 * section),
               .state = {},
               .span = {}};
    run.load(scratch + section);
    if (s.parts > 1) {
      one_part(run, part, partials);
    } else {
      whole_context(run, scratch + 2 * section);
    }
  }
}

// Joins the parts of query `index`, in order, and writes y.
template <class T>
void join_query(const Attention::Problem& p, const Attention::Args& a, const AttentionShape& s, int64_t index,
                float* scratch, float* partials) {
  const int64_t row = index / p.heads, head = index % p.heads;
  const RowSpan span = row_span(p, a, row);
  if (span.sequence < 0) return;
  Online total{.values = scratch};
  std::fill_n(scratch, s.padded_dim, 0.f);
  for (int64_t at = span.first / kAttentionPart * kAttentionPart; at < span.end; at += kAttentionPart) {
    float* part = partial_at(p, s, partials, row, head, at / kAttentionPart);
    join({part[0], part[1], part + 2}, p.head_dim, &total);
  }
  finish(p, a, total, head, a.y.row<T>(row) + head * p.head_dim);
}

}  // namespace

void attention_item(const Attention::Problem& p, const Attention::Args& a, const AttentionShape& s,
                    int64_t index, float* scratch, float* partials) {
  with_float(p.q, [&]<class T>(const T*) { item<T>(p, a, s, index, scratch, partials); });
}
void attention_join(const Attention::Problem& p, const Attention::Args& a, const AttentionShape& s,
                    int64_t index, float* scratch, float* partials) {
  with_float(p.q, [&]<class T>(const T*) { join_query<T>(p, a, s, index, scratch, partials); });
}

}  // namespace sluice::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::cpu {
HWY_EXPORT(attention_item);
HWY_EXPORT(attention_join);

namespace {

Refusal supports(const Attention::Problem&, const DeviceInfo&) { return {}; }

// A page table has room for the longest sequence, but most sequences are much shorter.
double cost_us(const Attention::Problem& p, const DeviceInfo& d) {
  constexpr int64_t kContext = 1024;
  Attention::Problem usual = p;
  usual.pages_per_seq = std::min(p.pages_per_seq, std::max<int64_t>(1, kContext / p.page_size));
  return roofline_us<Attention>(usual, d, 0.6, 0.25 * d.f32_flops_per_us);
}

int64_t partials_of(const Attention::Problem& p, const AttentionShape& s) {
  return s.parts > 1 ? p.tokens * p.heads * s.parts * s.partial_floats() : 0;
}

size_t workspace_bytes(const Attention::Problem& p, const DeviceInfo& d) {
  const AttentionShape s = attention_shape(p);
  return static_cast<size_t>(d.cores * s.thread_floats() + partials_of(p, s)) * sizeof(float);
}

Status enqueue(const Attention::Problem& p, const Attention::Args& a, Workspace workspace, Stream stream) {
  SLUICE_TRY(check_scratch("cpu.attention.paged", p, workspace_bytes, workspace, stream));
  return submit(stream, [p, a, workspace](Queue& q) {
    const AttentionShape s = attention_shape(p);
    const auto partial_bytes = static_cast<size_t>(partials_of(p, s)) * sizeof(float),
               thread_bytes = static_cast<size_t>(s.thread_floats()) * sizeof(float);
    const int64_t slots = slots_in(workspace.bytes - partial_bytes, thread_bytes, *q.pool);
    auto* scratch = reinterpret_cast<float*>(workspace.data);
    float* partials = scratch + slots * s.thread_floats();
    run_in_slots(*q.pool, slots, s.items() * p.kv_heads, 1, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t i = begin; i < end; ++i)
        SLUICE_SIMD(q, attention_item)(p, a, s, i, scratch + thread * s.thread_floats(), partials);
    });
    if (s.parts == 1) return;
    run_in_slots(*q.pool, slots, p.tokens * p.heads, 8, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t i = begin; i < end; ++i)
        SLUICE_SIMD(q, attention_join)(p, a, s, i, scratch + thread * s.thread_floats(), partials);
    });
  });
}

}  // namespace

extern const Candidate<Attention> attention_paged = {
    .name = "cpu.attention.paged",
    .backend = Backend::kCpu,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = workspace_bytes,
    .enqueue = enqueue,
    .batch_invariant = true,
};

}  // namespace sluice::cpu
#endif  // HWY_ONCE
