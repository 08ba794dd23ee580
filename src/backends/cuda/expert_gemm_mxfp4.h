// The kernels of expert_gemm for mxfp4 weights as parts of one that has both: each serves the experts of its share.
#pragma once
#include "backends/cuda/expert_share.h"
#include "base/tensor.h"
#include "dispatch/candidate.h"
#include "ops/expert_gemm.h"

namespace sluice::cuda {

// Columns of a unit of the stream kernel, 8 or 16: rows of an expert that its weights are read once for.
int mxfp4_stream_columns(const ExpertGemm::Problem& problem);
// us that the stream kernel takes for all experts under uniform routing.
double mxfp4_stream_uniform_us(const ExpertGemm::Problem& problem, const DeviceInfo& device);
// The stream kernel, for the experts of `share`. It releases the next launch behind its wait (rule 4 of tile/dependent.cuh).
Status enqueue_mxfp4_stream(const ExpertGemm::Problem& problem, const ExpertGemm::Args& args, Stream stream,
                            const ExpertShare& share);
// Tiles of 384 x 16 to 32 for the experts of `share`, behind a launch of the same problem: share.turn > 0. No workspace.
Status enqueue_mxfp4_tiles_behind(const ExpertGemm::Problem& problem, const ExpertGemm::Args& args,
                                  Stream stream, const ExpertShare& share);

}  // namespace sluice::cuda
