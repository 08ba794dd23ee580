// Locates one MoE layer in a checkpoint or in a caller's tensors: finds and checks every tensor, and
// describes each expert's matrices as row spans.
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

// Identifies a layer, the naming of its tensors, and the rank's slice.
struct MoePlace {
  MoeNaming naming = MoeNaming::kGptOss;
  int64_t layer = 0;
  Slice slice = {};
};

struct MoeSource {
  const Checkpoint* checkpoint = nullptr;
  const MoeNames* names = nullptr;
  int64_t layer = 0;
  MoeConfig whole, local;  // the whole layer; this rank's slice
  // this rank's parts of `intermediate`, of the shared expert's width and of the experts
  Part width, shared_width, experts;
  // Tensors with the shapes of the whole layer; null if the layer does not have them.
  const CheckpointTensor *router = nullptr, *router_bias = nullptr, *correction_bias = nullptr,
                         *hash_table = nullptr;
  const CheckpointTensor *up_bias = nullptr, *down_bias = nullptr;
  // This rank's part of the tensors that only a caller supplies (router adapters, activation parameters),
  // with their names in weight_slots().
  std::vector<std::pair<std::string, CheckpointTensor>> beside;
  PackedMatrix up, down, shared_up, shared_down, latent_in, latent_out;  // this rank's part of one expert
  // This rank's experts, in the order of MoeWeights: shared slots come last.
  std::vector<ExpertSource> of_expert;
  std::optional<ExpertSource> shared;  // set if the shared expert is computed separately
  // the projections to and from the latent width, whole on every rank; set if latent > 0
  std::optional<ExpertSource> latent;

  // Row of an expert (its id in the whole model) in a tensor [n, ...], which may hold all experts, this
  // rank's experts, or only the requested expert.
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

// Finds a layer. Tensors [experts, ...] may hold only this rank's experts. kCorrupt and kUnsupported name the
// file and the tensor, what was wanted and what was found: a tensor is missing or has another shape or type.
// kInvalidArgument: the config or slice is invalid (nn/moe/slice.h), the naming cannot store it, or a tensor
// exists that `whole` does not use.
Result<MoeSource> find_moe(const Checkpoint& checkpoint, const MoeConfig& whole, MoeNaming naming,
                           int64_t layer, const Slice& slice);

// Finds only one expert (its id in the whole model): only its matrices and biases must exist, in tensors that
// may hold no other expert. The other entries of of_expert are empty. kInvalidArgument: the expert belongs to
// another rank.
Result<MoeSource> find_expert(const Checkpoint& checkpoint, const MoeConfig& whole, const MoePlace& place,
                              int64_t expert);

// Describes the weights of a product for packing.
PackedMatrix packed_matrix(const ExpertGemm::Problem& problem);
// Bytes of a matrix's weights and scales that packing reads, without padding.
int64_t weight_bytes(const PackedMatrix& matrix);
// Calls visit(tensor, begin, bytes) for the byte ranges that a matrix's spans cover. Block scales and row
// scales are visited as whole tensors.
using ExtentVisitor = std::function<void(const CheckpointTensor& tensor, int64_t begin, int64_t bytes)>;
void for_each_extent(const PackedMatrix& matrix, const MatrixSource& source, const ExtentVisitor& visit);
// Page hints to the operating system for a matrix (weights/mapped_file.h).
void prefetch(const Checkpoint& checkpoint, const PackedMatrix& matrix, const MatrixSource& source);
void release(const Checkpoint& checkpoint, const PackedMatrix& matrix, const MatrixSource& source);

}  // namespace sluice
