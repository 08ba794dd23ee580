// An MoE layer from a checkpoint into a device's memory, packed.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "nn/moe_source.h"
#include "nn/owned_tensor.h"
#include "weights/packed.h"

namespace sluice {

struct MoeLoadOptions {
  MoeNaming naming = MoeNaming::kGptOss;
  int64_t layer = 0;
  Slice slice = {};
  int threads = 0;  // that pack, or read for a device that packs; 0: one for each processor
  // Called on the caller's thread after each matrix: bytes of weights packed so far, and of the layer.
  std::function<void(int64_t bytes_done, int64_t bytes_total)> progress = {};
};

// One layer's weights, ready for Moe::forward of config(). The memory goes with the object; pointers stay as long as it lives.
class LoadedMoe {
 public:
  const MoeConfig& config() const { return config_; }  // of this rank
  const MoeWeights& weights() const { return weights_; }
  int64_t layer() const { return options_.layer; }
  int64_t bytes() const;         // of device memory
  uint64_t fingerprint() const;  // of all experts and the shared one, as the checkpoint has them
  const MoeConfig& whole() const { return whole_; }
  const MoeLoadOptions& options() const { return options_; }

  // Overwrites one expert (its number in the whole model) with another checkpoint's, biases too, in place: no pointer moves, and
  // recordings stay valid. Nothing may run meanwhile. Everything is checked, and the memory that it needs (as load_moe) is taken,
  // before the first byte is written; errors as load_moe. Tensors of the caller's are a Checkpoint, too (Checkpoint::of_memory):
  // those of the expert are enough, and the biases of all experts where the layer has any.
  Status replace_expert(const Checkpoint& checkpoint, int64_t expert);
  // The same for the whole layer, router and shared expert included.
  Status replace(const Checkpoint& checkpoint);
  // Reads all packed bytes: kCorrupt names the layer and the first expert that is no longer what was packed.
  Status verify() const;

 private:
  friend class MoeLoader;
  LoadedMoe(Device& device, MoeConfig whole, MoeConfig config, MoeLoadOptions options)
      : device_(device), whole_(std::move(whole)), config_(std::move(config)), options_(std::move(options)) {}

  Device& device_;
  MoeConfig whole_, config_;
  MoeLoadOptions options_;
  MoeWeights weights_;
  std::vector<OwnedTensor> memory_;
  PackedExperts up_, down_, shared_up_, shared_down_;  // shared: no experts where it has no path of its own
  PackedExperts latent_in_, latent_out_;               // no experts without a latent width
};

// Loads what weight_slots(sliced(whole, options.slice)) asks for, in whole.layout, which must be one that the device reads
// (nn/moe.h: layout_for), straight from the mapped file. Where the device shares the host's memory, threads of the host pack:
// besides the weights themselves that needs less than 64 MiB. Elsewhere the device packs (nn/expert_upload.h): that needs its
// memory for one matrix of one expert as it stands in the checkpoint, and 32 MiB of the host's. Pages of the file are released
// after it. kIo names a file that has become shorter since the checkpoint was opened.
// kCorrupt or kUnsupported names file and tensor, what was wanted and what was found (nn/moe_source.h); a NaN scale (255) of an
// expert also expert, row and block; an expert id in a hash table that is out of range, its row. kOutOfMemory says how many
// bytes the layer wants and how many are free.
Result<std::unique_ptr<LoadedMoe>> load_moe(Device& device, const Checkpoint& checkpoint,
                                            const MoeConfig& whole, const MoeLoadOptions& options);

}  // namespace sluice
