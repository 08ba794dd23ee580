// Where one MoE layer lies in a checkpoint, or in a caller's tensors: every tensor found and checked, every expert as spans of rows.
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

// Which layer, under which names, and which rank's part of it.
struct MoePlace {
  MoeNaming naming = MoeNaming::kGptOss;
  int64_t layer = 0;
  Slice slice = {};
};

struct MoeSource {
  const Checkpoint* checkpoint = nullptr;
  const MoeNames* names = nullptr;
  int64_t layer = 0;
  MoeConfig whole, local;  // of all ranks, of this one
  Part width, shared_width,
      experts;  // this rank's part of `intermediate`, of the shared expert's, of the experts
  // Absent tensors are null. Shapes are the whole layer's.
  const CheckpointTensor *router = nullptr, *router_bias = nullptr, *correction_bias = nullptr,
                         *hash_table = nullptr;
  const CheckpointTensor *up_bias = nullptr, *down_bias = nullptr;
  // This rank's part of tensors that a caller brings beside a checkpoint's, by their names in weight_slots().
  std::vector<std::pair<std::string, CheckpointTensor>> beside;
  PackedMatrix up, down, shared_up, shared_down, latent_in, latent_out;  // of one expert, this rank's part
  // This rank's experts, its part of their width, in the order of MoeWeights: shared slots come last.
  std::vector<ExpertSource> of_expert;
  std::optional<ExpertSource> shared;  // on a path of its own
  std::optional<ExpertSource>
      latent;  // the projections into and out of the latent width, whole on every rank

  // Where an expert of the whole model stands in a tensor of experts [n, ...]: n is all of them, those of this rank, or the one that
  // was asked for.
  int64_t row_of_expert(const CheckpointTensor& t, int64_t expert) const {
    return t.shape[0] == whole.experts ? expert : t.shape[0] == experts.count ? expert - experts.begin : 0;
  }
  // "layer 3": how errors begin.
  std::string place() const { return "layer " + std::to_string(layer); }
  // "expert 12", "shared expert 0": one of of_expert by its name in the whole model.
  std::string expert_name(int64_t local) const {
    const bool routed = local < experts.count;
    return (routed ? "expert " : "shared expert ") +
           std::to_string(routed ? experts.begin + local : local - experts.count);
  }
};

// kCorrupt or kUnsupported names file and tensor, what was wanted and what was found: a tensor that is missing or has another
// type or shape, or one that is there although `whole` says that the layer has none of it. kInvalidArgument: a config or slice
// that cannot be (nn/moe/slice.h), or that the naming cannot hold. Tensors of experts may hold this rank's alone.
Result<MoeSource> find_moe(const Checkpoint& checkpoint, const MoeConfig& whole, MoeNaming naming,
                           int64_t layer, const Slice& slice);

// The same for one expert (its number in the whole model) alone: only its matrices and biases must be there, in tensors that may hold
// no other, and of_expert has nothing for the others. kInvalidArgument: an expert of another rank.
Result<MoeSource> find_expert(const Checkpoint& checkpoint, const MoeConfig& whole, const MoePlace& place,
                              int64_t expert);

// What packing calls the weights of an expert's product.
PackedMatrix packed_matrix(const ExpertGemm::Problem& problem);
// Bytes of a matrix's weights and scales, without padding: what packing it reads.
int64_t weight_bytes(const PackedMatrix& matrix);
// Calls visit(tensor, begin, bytes) for the parts of tensors that a matrix's spans cover; the scales of an F8 matrix as a whole.
using ExtentVisitor = std::function<void(const CheckpointTensor& tensor, int64_t begin, int64_t bytes)>;
void for_each_extent(const PackedMatrix& matrix, const MatrixSource& source, const ExtentVisitor& visit);
// Hints about the pages of a matrix (weights/mapped_file.h).
void prefetch(const Checkpoint& checkpoint, const PackedMatrix& matrix, const MatrixSource& source);
void release(const Checkpoint& checkpoint, const PackedMatrix& matrix, const MatrixSource& source);

}  // namespace sluice
