// A dense layer for up to eight rows: weights are read once, and the rows of x stay in registers or shared memory (linear_stream.cuh).
//
// Wins    one to eight rows of gpt-oss's projections (linear_candidates.csv, 8 rows): 7.0 us against 7.6 us of split_sm90 for 2880 x 4096,
//         8.4 us against 8.7 us of shares_sm90 for 5120 x 2880.
// Loses   to tile kernels for layers of many features. It refuses more than eight rows.
// Limits  see supports() below. The order of a sum depends only on the width, so the kernel is batch-invariant.
// Bytes   w once; x once per CTA, or once per unit for widths above 4096 (8192 for a single row).
// Source  original; the contract is ops/linear.h.
#include "backends/cuda/linear/linear_stream.h"

namespace sluice::cuda {
namespace {

Refusal supports(const Linear::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_linear_operands(r, p, d);
  need_stream_rows(r, p.tokens);
  return r;
}

std::vector<Config> configs(const Linear::Problem& p, const DeviceInfo& d) {
  // With shares in multiples of eight, the largest share is smaller, but boxes of eight features load more slowly.
  // On an H100 multiples of eight are faster if they make the largest share a quarter smaller (2880 x 4096: 8.27
  // us instead of 8.87), but not if they make it a sixth smaller (5120 x 2880: 10.54 us instead of 9.89).
  const auto largest = [&](int64_t of) { return of * linear_parts(linear_parts(p.features, of), d.cores); };
  const int each = 4 * largest(kStreamEight) <= 3 * largest(kStreamSlab) ? kStreamEight : kStreamSlab;
  return {Config{.cost_us = linear_stream_us(p, d), .launches = {linear_stream_launch(p, d, each)}}};
}

std::string launch_text(const Linear::Problem&, const KernelLaunch& l) { return linear_stream_text(l); }

struct Launcher {
  static Status enqueue(const Linear::Problem&, std::span<const KernelLaunch>, const Linear::Args&, Workspace,
                        Stream);
};

}  // namespace

extern const Candidate<Linear> linear_stream_sm90 =
    linear_candidate<Launcher>({"cuda.linear.stream_sm90", supports, configs, launch_text});

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/linear/linear_stream.cuh"
#include "backends/cuda/tile/tensor_map.h"

namespace sluice::cuda {
namespace {

// Stores sum + bias + residual to y.
struct PlainEnd {
  struct Maps {
    CUtensorMap slab, eight;  // boxes of 16 features; of 8 features
  };
  static constexpr bool kEights = true;
  using Out = LinearOutput;

  static __device__ __forceinline__ void prefetch(const Maps& w) {
    tile::prefetch_map(w.slab), tile::prefetch_map(w.eight);
  }
  static __device__ __forceinline__ void fetch(bool slab, uint64_t policy, uint32_t to, const Maps& w, int k,
                                               int feature, uint32_t full) {
    tile::copy_box_by(policy, to, slab ? w.slab : w.eight, k, feature, full);
  }
  struct Token {
    __device__ __forceinline__ explicit Token(const Out&) {}
  };
  // The epilogue's operands, loaded as raw bits.
  class Unit {
   public:
    __device__ __forceinline__ Unit(const Out& out, const Token&, int first, int end)
        : feature_(first + stream::row_of_thread()) {
      const int token = stream::token_of_thread();
      mine_ = token < out.tokens && feature_ < min(end, out.features);
      bias_ = out.raw_bias_of(feature_, mine_);
      residual_ =
          load_raw(out.residual, token * out.residual_stride + feature_, out.y_f32, mine_ && out.residual);
    }
    __device__ __forceinline__ void store(const Out& out, const Token&, int, float sum) const {
      if (!mine_) return;
      sum += tile::weight_value<stream::B16>(bias_);
      sum += residual_.value();
      out.store(stream::token_of_thread(), feature_, sum);
    }

   private:
    int feature_;
    bool mine_;
    uint32_t bias_;
    RawElement residual_;
  };
};

Status Launcher::enqueue(const Linear::Problem& p, std::span<const KernelLaunch> launches,
                         const Linear::Args& a, Workspace, Stream stream) {
  if (p.tokens == 0) return {};
  PlainEnd::Maps w;
  SLUICE_TRY(tile::map_rows(w.slab, a.w, stream::kSlab));
  SLUICE_TRY(tile::map_rows(w.eight, a.w, stream::kEight));
  return stream::launch_stream<PlainEnd>(linear_stream_sm90.name, p, launches[0], a.x, w, linear_output(p, a),
                                         stream);
}

}  // namespace

}  // namespace sluice::cuda
#endif
