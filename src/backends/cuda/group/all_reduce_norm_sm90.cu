// The sum over ranks, the residual add and the norm in one launch. A CTA
// exchanges one row at a time, which stays in registers until it is normalized.
//
//   once     every rank sends its whole row to every other rank, and all ranks compute all rows
//   twice    each row belongs to one rank, which receives the other ranks' rows, computes the sum and sends
//            it back; then all ranks normalize it
//
// Wins    always: it is the only kernel of AllReduceNorm. A launch for one row of 2880 takes 2.66 us in a
//         chain on two H200s; without the exchange it takes 1.78 us (bench/measured/archive/h200/group.csv).
// Loses   bandwidth: half of the bytes sent are exchange numbers (tile/exchange.cuh). 8192 rows take 288 us;
//         their data alone would take 105 us over NVLink.
// Limits  none beyond the contract.
// Source  original; words with flags are NCCL's LL protocol. The contract, including the order of the sum, is
//         ops/all_reduce_norm.h.
#include "backends/cuda/card.h"
#include "ops/all_reduce_norm.h"

namespace sluice::cuda {
namespace {

enum class Way : int32_t { kOnce, kTwice };
constexpr std::string_view kWays[] = {"once", "twice"};

Refusal supports(const AllReduceNorm::Problem&, const DeviceInfo& d) {
  Refusal r;
  need_sm90(r, d);
  return r;
}

// An exchange is a store to another GPU and its arrival. Rows travel at the rate of NVLink, in
// words of which half is data. Fitted to two H200s, where the time depends only on the bytes sent,
// with 1 to 8192 rows of 2048 and 2880: within 6% for the faster way, within 12% for the other way.
double cost_us(const AllReduceNorm::Problem& p, const DeviceInfo& d, Way way) {
  if (p.ranks == 1) return stream_us<AllReduceNorm>(p, d);
  constexpr double kLaunchUs = 1.7, kOnceUs = 0.8, kTwiceUs = 2.1;
  constexpr double kOnceBytesPerUs = 330e3, kTwiceBytesPerUs = 345e3;
  const auto others = static_cast<double>(p.ranks - 1);
  const bool once = way == Way::kOnce;
  const double rows = once ? others : 2 * others / static_cast<double>(p.ranks);
  const double sent = 2 * rows * static_cast<double>(bytes_of(p.x, p.tokens * p.hidden));
  const double exchange =
      kLaunchUs + (once ? kOnceUs + sent / kOnceBytesPerUs : kTwiceUs + sent / kTwiceBytesPerUs);
  return std::max(stream_us<AllReduceNorm>(p, d), exchange);
}

std::vector<Config> configs(const AllReduceNorm::Problem& p, const DeviceInfo& d) {
  std::vector<Config> out;
  for (const Way way : {Way::kOnce, Way::kTwice}) {
    Config& c = out.emplace_back(Config{.name = std::string(kWays[static_cast<int>(way)])});
    c.cost_us = cost_us(p, d, way);
    c.launches = {{{static_cast<int32_t>(way)}}};
    if (way == Way::kTwice)
      c.refusal.need(p.ranks > 1, "ranks > 1 (a row belongs to one of them)", "ranks", p.ranks);
  }
  return out;
}

std::string launch_text(const AllReduceNorm::Problem&, const KernelLaunch& launch) {
  return launch.value[0] == static_cast<int32_t>(Way::kOnce) ? "all rows to all ranks"
                                                             : "parts to a row's rank, sums back";
}

struct Launcher {
  static Status enqueue(const AllReduceNorm::Problem&, std::span<const KernelLaunch>,
                        const AllReduceNorm::Args&, Workspace, Stream);
};

}  // namespace

// Both ways add in the order of the contract, and the same threads normalize the same rounded rows, so results are bitwise equal.
extern const Candidate<AllReduceNorm> all_reduce_norm_sm90 = {
    .name = "cuda.all_reduce_norm.words_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .configs = configs,
    .enqueue_config = enqueue_config_of<AllReduceNorm, Launcher>(),
    .launch_text = launch_text,
    .batch_invariant = true,
    .alignment_bytes = 16,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/launch.h"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/exchange.cuh"
#include "backends/cuda/tile/vector.cuh"

namespace sluice::cuda {
namespace {

constexpr int kWarp = 32, kThreadsMax = 1024, kWordBytes = 8;

struct Parameters {
  const void *x, *weight;
  void *stream, *y;
  int64_t x_stride, stream_stride, y_stride;  // elements between rows
  int tokens, hidden;
  float eps;
  bool residual, norm;
  Wire wire;
};

// The sum over the threads of a CTA, with the same bits in every thread.
// Calls use two buffers alternately, so one barrier per call is enough.
class BlockSum {
 public:
  __device__ __forceinline__ float operator()(float value) {
    __shared__ float of_warp[2][kWarp];
    const int lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp;
    float* const mine = of_warp[calls_++ % 2];
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    if (lane == 0) mine[threadIdx.x / kWarp] = value;
    __syncthreads();
    value = lane < warps ? mine[lane] : 0.f;
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
  }

 private:
  int calls_ = 0;
};

template <class T>
__device__ __forceinline__ void unpack(float (&out)[kWordBytes / sizeof(T)], uint2 word) {
  const T* element = reinterpret_cast<const T*>(&word);
#pragma unroll
  for (int i = 0; i < static_cast<int>(kWordBytes / sizeof(T)); ++i) out[i] = tile::to_f32(element[i]);
}
template <class T>
__device__ __forceinline__ uint2 pack(const float (&values)[kWordBytes / sizeof(T)]) {
  uint2 word;
  T* element = reinterpret_cast<T*>(&word);
#pragma unroll
  for (int i = 0; i < static_cast<int>(kWordBytes / sizeof(T)); ++i)
    element[i] = tile::from_f32<T>(values[i]);
  return word;
}

// The rows of a launch. A thread has kHeld words of each row: words threadIdx.x + i * blockDim.x.
template <class T, class W, int kHeld>
struct Rows {
  static constexpr int N = kWordBytes / static_cast<int>(sizeof(T));
  using Row = uint2[kHeld];
  const Parameters& p;
  float weight[kHeld][N];
  BlockSum block_sum = {};

  __device__ __forceinline__ explicit Rows(const Parameters& parameters) : p(parameters) {
    if (!p.norm) return;
    for_mine([&](int i, int word) { tile::load(weight[i], static_cast<const W*>(p.weight) + word * N); });
  }
  template <class F>
  __device__ __forceinline__ void for_mine(F f) const {
    const int words = p.hidden / N;
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (const int word = static_cast<int>(threadIdx.x) + i * static_cast<int>(blockDim.x); word < words)
        f(i, word);
  }
  __device__ __forceinline__ void load(Row& row, const void* from, int64_t stride, int token) const {
    const auto* at = reinterpret_cast<const uint2*>(static_cast<const T*>(from) + token * stride);
    for_mine([&](int i, int word) { row[i] = at[word]; });
  }
  // The sum of a word over all ranks (`own` is this rank's), plus the word `before` of the residual stream.
  __device__ __forceinline__ uint2 sum(tile::Exchange& exchange, int word, uint2 own, uint2 before) const {
    float h[N], more[N];
    for (int rank = 0; rank < p.wire.ranks; ++rank) {
      const uint2 part = rank == p.wire.rank ? own : exchange.receive(rank, 0, word);
      unpack<T>(rank == 0 ? h : more, part);
      if (rank == 0) continue;
#pragma unroll
      for (int k = 0; k < N; ++k) h[k] += more[k];
    }
    if (p.residual) {
      unpack<T>(more, before);
#pragma unroll
      for (int k = 0; k < N; ++k) h[k] += more[k];
    }
    return pack<T>(h);
  }
  // Writes a row of the stream and its norm.
  __device__ __forceinline__ void finish(const Row& row, int token) {
    auto* stream = reinterpret_cast<uint2*>(static_cast<T*>(p.stream) + token * p.stream_stride);
    for_mine([&](int i, int word) { stream[word] = row[i]; });
    if (!p.norm) return;
    float h[N], squares = 0;
    for_mine([&](int i, int) {
      unpack<T>(h, row[i]);
#pragma unroll
      for (float v : h) squares = fmaf(v, v, squares);
    });
    const float inverse = 1.f / sqrtf(block_sum(squares) / static_cast<float>(p.hidden) + p.eps);
    auto* y = reinterpret_cast<uint2*>(static_cast<T*>(p.y) + token * p.y_stride);
    for_mine([&](int i, int word) {
      unpack<T>(h, row[i]);
#pragma unroll
      for (int k = 0; k < N; ++k) h[k] = h[k] * inverse * weight[i][k];
      y[word] = pack<T>(h);
    });
  }
};

template <class T, class W, int kHeld>
__global__ void __launch_bounds__(kThreadsMax) all_reduce_once(const __grid_constant__ Parameters p) {
  using R = Rows<T, W, kHeld>;
  tile::release_next();
  R rows(p);
  tile::wait_for_previous();
  tile::Exchange exchange(p.wire, blockIdx.x);
  typename R::Row own, next, sum;
  const auto send = [&](int token, bool ahead) {
    rows.load(next, p.x, p.x_stride, token);
    rows.for_mine([&](int i, int word) {
      for (int rank = 0; rank < p.wire.ranks; ++rank)
        if (rank != p.wire.rank) exchange.send(rank, 0, word, next[i], ahead);
    });
  };
  send(blockIdx.x, false);
  for (int token = blockIdx.x; token < p.tokens; token += gridDim.x, exchange.next()) {
    rows.for_mine([&](int i, int) { own[i] = next[i]; });
    if (token + gridDim.x < p.tokens) send(token + gridDim.x, true);
    typename R::Row before;
    if (p.residual) rows.load(before, p.stream, p.stream_stride, token);
    rows.for_mine([&](int i, int word) { sum[i] = rows.sum(exchange, word, own[i], before[i]); });
    rows.finish(sum, token);
  }
  __syncthreads();  // all threads have read the lane's counter of exchanges
  if (threadIdx.x == 0) exchange.keep_count();
}

// A CTA handles `ranks` rows at a time; each rank adds up one of them. Rank 0 has a
// row in every exchange, with words from and to every other rank. So the slot rule
// (tile/exchange.cuh) holds even if two other ranks send each other nothing at the end.
template <class T, class W, int kHeld>
__global__ void __launch_bounds__(kThreadsMax) all_reduce_twice(const __grid_constant__ Parameters p) {
  using R = Rows<T, W, kHeld>;
  tile::release_next();
  R rows(p);
  tile::wait_for_previous();
  tile::Exchange exchange(p.wire, blockIdx.x);
  const int ranks = p.wire.ranks, rank = p.wire.rank, apart = gridDim.x * ranks;
  typename R::Row row, before;
  const auto send_parts = [&](int first, bool ahead) {
    for (int other = 0; other < ranks; ++other) {
      if (other == rank || first + other >= p.tokens) continue;
      rows.load(row, p.x, p.x_stride, first + other);
      rows.for_mine([&](int i, int word) { exchange.send(other, 0, word, row[i], ahead); });
    }
  };
  send_parts(blockIdx.x * ranks, false);
  for (int first = blockIdx.x * ranks; first < p.tokens; first += apart, exchange.next()) {
    if (first + apart < p.tokens) send_parts(first + apart, true);
    if (const int mine = first + rank; mine < p.tokens) {
      rows.load(row, p.x, p.x_stride, mine);
      if (p.residual) rows.load(before, p.stream, p.stream_stride, mine);
      rows.for_mine([&](int i, int word) {
        row[i] = rows.sum(exchange, word, row[i], before[i]);
        for (int other = 0; other < ranks; ++other)
          if (other != rank) exchange.send(other, 1, word, row[i]);
      });
      rows.finish(row, mine);
    }
    for (int other = 0; other < ranks; ++other) {
      if (other == rank || first + other >= p.tokens) continue;
      rows.for_mine([&](int i, int word) { row[i] = exchange.receive(other, 1, word); });
      rows.finish(row, first + other);
    }
  }
  __syncthreads();  // all threads have read the lane's counter of exchanges
  if (threadIdx.x == 0) exchange.keep_count();
}

using B16 = __nv_bfloat16;
using Kernel = void (*)(Parameters);
template <class T, class W, int kHeld>
Kernel kernel_for(Way way) {
  return way == Way::kOnce ? all_reduce_once<T, W, kHeld> : all_reduce_twice<T, W, kHeld>;
}
template <class T, class W>
Kernel kernel_for(Way way, int64_t held) {
  return held == 1   ? kernel_for<T, W, 1>(way)
         : held == 2 ? kernel_for<T, W, 2>(way)
                     : kernel_for<T, W, 4>(way);
}
template <class T>
Kernel kernel_for(const AllReduceNorm::Problem& p, Way way, int64_t held) {
  return p.w == DType::kBF16 ? kernel_for<T, B16>(way, held) : kernel_for<T, float>(way, held);
}

// The wire of a launch: the group's wire, or an empty one if there is only one rank.
Result<Wire> wire_of(const AllReduceNorm::Problem& p, const GroupQueue& queue) {
  if (p.ranks == 1) return Wire{};
  const Member* member = member_of(queue);
  if (!member || member->wire.ranks != p.ranks)
    return invalid("all_reduce_norm: wanted a device in a group of " + std::to_string(p.ranks) + ", found " +
                   (member ? "a group of " + std::to_string(member->wire.ranks) : "none"));
  if (const int64_t bytes = bytes_of(p.x, p.hidden); bytes > member->row_bytes)
    return invalid("all_reduce_norm: wanted rows of at most row_bytes = " +
                   std::to_string(member->row_bytes) + " of the group, found " + std::to_string(bytes));
  SLUICE_TRY(group_status(queue));
  return member->wire;
}

Status Launcher::enqueue(const AllReduceNorm::Problem& p, std::span<const KernelLaunch> launches,
                         const AllReduceNorm::Args& a, Workspace, Stream stream) {
  const Result<Wire> wire = wire_of(p, group_queue_of(stream));
  if (!wire.ok()) return wire.status();
  if (p.tokens == 0) return {};
  const auto way = static_cast<Way>(launches.front().value[0]);
  const Parameters parameters{.x = a.x.data,
                              .weight = a.weight.data,
                              .stream = a.stream.data,
                              .y = a.y.data,
                              .x_stride = a.x.stride[0],
                              .stream_stride = a.stream.stride[0],
                              .y_stride = a.y.stride[0],
                              .tokens = static_cast<int>(p.tokens),
                              .hidden = static_cast<int>(p.hidden),
                              .eps = static_cast<float>(p.eps),
                              .residual = p.residual,
                              .norm = p.norm,
                              .wire = wire.value()};
  const int64_t words = bytes_of(p.x, p.hidden) / kWordBytes, held = (words + kThreadsMax - 1) / kThreadsMax;
  const int64_t threads = ((words + held - 1) / held + kWarp - 1) / kWarp * kWarp;
  const int64_t exchanges = way == Way::kOnce ? p.tokens : (p.tokens + p.ranks - 1) / p.ranks;
  const int64_t lanes = p.ranks == 1 ? p.tokens : std::min<int64_t>(exchanges, parameters.wire.lanes);
  const Launch how{.grid = {static_cast<unsigned>(lanes), 1, 1},
                   .block = {static_cast<unsigned>(threads), 1, 1}};
  const Kernel kernel = p.x == DType::kBF16 ? kernel_for<B16>(p, way, held) : kernel_for<float>(p, way, held);
  return launch(all_reduce_norm_sm90.name, kernel, how, stream, parameters);
}

}  // namespace
}  // namespace sluice::cuda
#endif
