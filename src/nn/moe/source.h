// Locates one MoE layer in a checkpoint or in a caller's tensors: finds and checks every tensor, and
// describes each expert as spans of rows.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "nn/moe/names.h"
#include "nn/moe/slice.h"
#include "weights/packing.h"

namespace sluice {

struct ExpertSource {
  MatrixSource up, down;
};

// Identifies a layer, the naming of its tensors, and the rank's part of it.
struct MoePlace {
  MoeNaming naming = MoeNaming::kGptOss;
  int64_t layer = 0;
  Slice slice = {};
};

struct MoeSource {
  const Checkpoint* checkpoint = nullptr;
  const MoeNames* names = nullptr;
  int64_t layer = 0;
  MoeConfig whole, local;  // of all ranks, of this rank
  // this rank's part of `intermediate`, of the shared expert's width, of the experts
  Part width, shared_width, experts;
  // Absent tensors are null. Shapes are those of the whole layer.
  const CheckpointTensor *router = nullptr, *router_bias = nullptr, *correction_bias = nullptr,
                         *hash_table = nullptr;
  const CheckpointTensor *up_bias = nullptr, *down_bias = nullptr;
  // This rank's part of tensors that a caller supplies in addition to a checkpoint's, by their names in weight_slots().
  std::vector<std::pair<std::string, CheckpointTensor>> beside;
  PackedMatrix up, down, shared_up, shared_down, latent_in, latent_out;  // of one expert, this rank's part
  // This rank's part of its experts, in the order of MoeWeights: shared slots come last.
  std::vector<ExpertSource> of_expert;
  std::optional<ExpertSource> shared;  // if it has a separate path
  // projections into and out of the latent width, whole on every rank
  std::optional<ExpertSource> latent;

  // Row of an expert of the whole model in a tensor of experts [n, ...]: n counts all experts, this rank's
  // experts, or only the expert asked for.
  int64_t row_of_expert(const CheckpointTensor& t, int64_t expert) const {
    return t.shape[0] == whole.experts ? expert : t.shape[0] == experts.count ? expert - experts.begin : 0;
  }
  // "layer 3": the prefix of error messages.
  std::string place() const { return "layer " + std::to_string(layer); }
  // "expert 12" or "shared expert 0": names an entry of of_expert by its number in the whole model.
  std::string expert_name(int64_t local) const {
    const bool routed = local < experts.count;
    return (routed ? "expert " : "shared expert ") +
           std::to_string(routed ? experts.begin + local : local - experts.count);
  }
};

// kCorrupt or kUnsupported names file and tensor, what was wanted and what was found: a tensor is missing,
// has another type or shape, or exists although `whole` has no use for it. kInvalidArgument: a config or
// slice that is impossible (nn/moe/slice.h) or that the naming cannot store. Tensors of experts may hold
// this rank's experts alone.
Result<MoeSource> find_moe(const Checkpoint& checkpoint, const MoeConfig& whole, MoeNaming naming,
                           int64_t layer, const Slice& slice);

// Finds one expert (its number in the whole model) alone. Only its matrices and biases must exist, in
// tensors that may hold no other expert; the other entries of of_expert are empty. kInvalidArgument: the
// expert belongs to another rank.
Result<MoeSource> find_expert(const Checkpoint& checkpoint, const MoeConfig& whole, const MoePlace& place,
                              int64_t expert);

// The weights of an expert's product, as packing describes them.
PackedMatrix packed_matrix(const ExpertGemm::Problem& problem);
// Bytes of a matrix's weights and scales without padding, which packing reads.
int64_t weight_bytes(const PackedMatrix& matrix);
// Calls visit(tensor, begin, bytes) for the parts of tensors that a matrix's spans cover; scales of blocks and of rows count as a whole.
using ExtentVisitor = std::function<void(const CheckpointTensor& tensor, int64_t begin, int64_t bytes)>;
void for_each_extent(const PackedMatrix& matrix, const MatrixSource& source, const ExtentVisitor& visit);
// Page hints to the operating system for a matrix (weights/mapped_file.h).
void prefetch(const Checkpoint& checkpoint, const PackedMatrix& matrix, const MatrixSource& source);
void release(const Checkpoint& checkpoint, const PackedMatrix& matrix, const MatrixSource& source);

}  // namespace sluice
