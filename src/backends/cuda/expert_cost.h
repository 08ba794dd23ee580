// Time of grouped expert GEMMs on Hopper, from what one SM needs for one fragment of weights.
#pragma once
#include "backends/cuda/card.h"
#include "ops/expert_gemm.h"

namespace sluice::cuda {

// Conditions of every expert kernel here, whatever the type of its weights.
void need_expert_blocks(Refusal& r, const ExpertGemm::Problem& p, const DeviceInfo& d);

// How many experts run, and how many rows each of them has on average, under uniform routing.
struct ExpertLoad {
  double active = 0, rows_each = 0;
};
ExpertLoad expert_load(const ExpertGemm::Problem& p);

// Columns of the tensor instruction: `rows` split evenly over tiles of about `most`.
struct ColumnTiles {
  double tiles = 1, columns = 8;
};
ColumnTiles column_tiles(double rows, double least, double most);

// ns that an SM takes for one fragment (64 weight rows x 16 of the sum) of mxfp4 against `columns` columns of activations, in
// expert_gemm_mxfp4_tile_sm90 on an H200: bytes, dequantisation and multiplication together.
double tile_fragment_ns(double columns);

// What bf16 weights may reach of a plain stream and of the dense rate.
constexpr double kExpertMemoryShare = 0.9, kExpertTensorShare = 0.9;

}  // namespace sluice::cuda
