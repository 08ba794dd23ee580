// A dense layer for up to 128 rows, in which each SM computes a share of the features (linear_shares.cuh).
//
// Wins    12 to 128 rows of gpt-oss's 5120 x 2880 (linear_candidates.csv): 9.8 us against 11.2 us of
//         tile_sm90 at 64 rows. In decode steps it also wins where it is slower in isolation, because there the
//         weights arrive before x (share_us()).
// Loses   at 8 rows to stream_sm90: 8.7 us against 8.4 us for 5120 x 2880, 9.0 us against 7.0 us for 2880 x 4096.
//         In isolation also to split_sm90 for 2880 x 4096, because here every SM reads all of x: 10.0 us against
//         9.3 us at 64 rows.
// Limits  see need_shares() in linear_shares.h. A sum is added up from the first k to the last, so the kernel is batch-invariant.
// Bytes   w once; x once per SM, from L2.
// Source  original; the contract is ops/linear.h.
#include "backends/cuda/linear/linear_shares.h"

namespace sluice::cuda {
namespace {

Refusal supports(const Linear::Problem& p, const DeviceInfo& d) {
  Refusal r;
  shares::need_shares(r, p, d);
  return r;
}

std::vector<Config> configs(const Linear::Problem& p, const DeviceInfo& d) {
  return shares::configs_of(p, d, 0);
}

struct Launcher {
  static Status enqueue(const Linear::Problem&, std::span<const KernelLaunch>, const Linear::Args&, Workspace,
                        Stream);
};

}  // namespace

extern const Candidate<Linear> linear_shares_sm90 =
    linear_candidate<Launcher>({"cuda.linear.shares_sm90", supports, configs, shares::text_of});

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/linear/linear_shares.cuh"
#include "backends/cuda/tile/tensor_map.h"

namespace sluice::cuda {
namespace {

struct PlainEnd {
  struct Maps {
    CUtensorMap rows;  // boxes of one share's features
  };
  using Out = LinearOutput;

  static __device__ __forceinline__ void prefetch(const Maps& w) { tile::prefetch_map(w.rows); }
  template <int kFeatures>
  static __device__ __forceinline__ void fetch(uint64_t policy, uint32_t to, const Maps& w, int k, int share,
                                               uint32_t full) {
    tile::copy_box_by(policy, to, w.rows, k, share * kFeatures, full);
  }

  // The epilogue's operands for a thread's sums.
  template <int kEights>
  class Sums {
   public:
    // Loads the residual, so that the epilogue does not wait for it after the products.
    __device__ __forceinline__ Sums(const Out& out, int row)
        : row_(row),
          first_(static_cast<int>(blockIdx.x) * 8 * kEights + shares::column_of_thread()),
          biases_(out, first_) {
      tile::wait_for_previous();
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int j = 0; j < kEights; ++j) {
          const int token = row + 8 * half, feature = first_ + 8 * j;
          more_[half][j] =
              load_raw_two(out.residual, token * out.residual_stride + feature, out.y_f32,
                           out.residual && out.wide && token < out.tokens && feature + 1 < out.features);
        }
    }
    __device__ __forceinline__ void store(const Out& out, const float (&d)[4 * kEights]) const {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int token = row_ + 8 * half;
        if (token >= out.tokens) break;
#pragma unroll
        for (int j = 0; j < kEights; ++j) {
          const int feature = first_ + 8 * j;
          float sum[] = {d[4 * j + 2 * half] + biases_.value(2 * j),
                         d[4 * j + 2 * half + 1] + biases_.value(2 * j + 1)};
          if (out.wide && feature + 1 < out.features) {
            add_raw_two(sum, more_[half][j], out.y_f32);
            out.store_together(token, feature, sum);
          } else {
#pragma unroll
            for (int i = 0; i < 2; ++i)
              out.store(token, feature + i, sum[i] + out.residual_of(token, feature + i));
          }
        }
      }
    }

   private:
    int row_, first_;
    RawBiases<2 * kEights, 8, 2> biases_;
    uint2 more_[2][kEights];
  };
};

Status Launcher::enqueue(const Linear::Problem& p, std::span<const KernelLaunch> launches,
                         const Linear::Args& a, Workspace, Stream stream) {
  if (p.tokens == 0) return {};
  PlainEnd::Maps w;
  SLUICE_TRY(tile::map_rows(w.rows, a.w, shares::Share::of(launches[0]).features));
  return shares::launch_shares<PlainEnd>(linear_shares_sm90.name, p, launches[0], a.x, w, linear_output(p, a),
                                         stream);
}

}  // namespace
}  // namespace sluice::cuda
#endif
