// Kernels of the benchmark itself: data, ceilings, delays.
#pragma once
#include <cstdint>

#include "base/status.h"
#include "base/tensor.h"
#include "ops/weight_format.h"

namespace sluice::bench {

// Normal numbers with mean 0 and standard deviation `scale`, from a hash of (seed, index), in bf16, f32 or e4m3.
Status fill_normal(const Tensor& out, double scale, uint64_t seed, Stream stream);

// Random bytes, and random e8m0 scales from 2^-7 to 2^-5. `bytes` is a multiple of 4.
Status fill_bytes(void* out, int64_t bytes, uint64_t seed, Stream stream);
Status fill_scales(void* out, int64_t bytes, uint64_t seed, Stream stream);
// Scales of `rows` rows of `width` columns (ops/weight_format.h), of about `size`. With scales of blocks, 32 adjacent rows have equal scales.
Status fill_row_scales(WeightFormat format, void* out, int64_t rows, int64_t width, double size,
                       uint64_t seed, Stream stream);

// Keeps the GPU busy for about `us`, so that work enqueued meanwhile runs back to back and does not wait for the host.
Status delay(double us, Stream stream);

// One CTA that does nothing, except that a dependent launch waits for the previous launch.
Status empty_kernel(Stream stream);

// Reads all of `bytes` (a multiple of 16), adds up the data and writes the sums to sums[CTAs of this launch].
constexpr int kReadBlocks = 2112;
Status read_all(const void* from, size_t bytes, uint32_t* sums, Stream stream);

}  // namespace sluice::bench
