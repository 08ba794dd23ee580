// An MoE layer from a checkpoint into a device's memory, packed.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "nn/moe/source.h"
#include "nn/owned_tensor.h"
#include "weights/packed.h"

namespace sluice {

struct MoeLoadOptions {
  MoeNaming naming = MoeNaming::kGptOss;
  int64_t layer = 0;
  Slice slice = {};
  int threads = 0;  // that pack, or read for a device that packs; 0: one for each processor
  // A caller's memory of the device for the packed weights, at least moe_weight_bytes() of it, aligned to 256 bytes: it outlives them.
  // Empty: they get memory of their own.
  std::span<std::byte> memory = {};
  // Of a caller's tensors in the device's memory: bytes that come to the host at once, or one matrix where that is more.
  int64_t batch_bytes = int64_t{64} << 20;
  // Called on the caller's thread after each matrix: bytes of weights packed so far, and of the layer.
  std::function<void(int64_t bytes_done, int64_t bytes_total)> progress = {};
};

// Memory that the packed weights of a rank's layer take, each tensor aligned to 256 bytes.
int64_t moe_weight_bytes(const MoeConfig& local);

// Takes bytes in order, and may refuse more.
using ByteSink = std::function<Status(std::span<const std::byte>)>;

// One layer's weights, ready for Moe::forward of config(). The memory goes with the object; pointers stay as long as it lives.
class LoadedMoe {
 public:
  // Memory for a rank's weights, which nothing has been written to yet: replace() or read_packed() does. kOutOfMemory says how many
  // bytes the layer wants, with what replace() needs for a while, and how many are free; kInvalidArgument as sliced().
  static Result<std::unique_ptr<LoadedMoe>> allocate(Device& device, const MoeConfig& whole,
                                                     const MoeLoadOptions& options);

  const MoeConfig& config() const { return config_; }  // of this rank
  const MoeWeights& weights() const { return weights_; }
  int64_t layer() const { return options_.layer; }
  int64_t bytes() const { return moe_weight_bytes(config_); }
  uint64_t fingerprint() const;  // of all experts and the shared one, as the checkpoint has them
  const MoeConfig& whole() const { return whole_; }
  const MoeLoadOptions& options() const { return options_; }

  // Overwrites one expert (its number in the whole model) with another checkpoint's, biases too, in place: no pointer moves, and
  // recordings stay valid. Nothing may run meanwhile. The checkpoint may hold that expert alone (nn/moe/source.h). Everything is
  // checked, and the memory that it needs (as load_moe) is taken, before the first byte is written; errors as load_moe.
  Status replace_expert(const Checkpoint& checkpoint, int64_t expert);
  Status replace_expert(const Checkpoint& checkpoint, int64_t expert, MoeNaming naming, int64_t layer);
  // The same for the whole layer, router and shared expert included. kNo: weights that are no numbers and expert ids out of range are found
  // while packing, as load_moe does; then the weights are of no use.
  Status replace(const Checkpoint& checkpoint);
  Status replace(const Checkpoint& checkpoint, MoeNaming naming, int64_t layer,
                 CheckFirst check = CheckFirst::kYes);

  // The packed weights as a safetensors file: its bytes, and those in order, in pieces of at most 8 MiB. Metadata "sluice.packed" is
  // the version of the layouts (weights/packed.h), "sluice.config" the config of this rank as text. Tensors are those of
  // weight_slots(), then "sluice.fingerprints" u64 of each expert's source and "sluice.hashes" u64 of each tensor before.
  Result<int64_t> packed_bytes() const;
  Status write_packed(const ByteSink& sink) const;
  // Overwrites all weights with such bytes, in host memory, in place. kCorrupt names what differs, and what was wanted and found: the
  // version, a field of the config, a tensor, a tensor's hash; nothing is written then.
  Status read_packed(std::span<const std::byte> file);
  // Reads all packed bytes: kCorrupt names the layer and the first expert that is no longer what was packed.
  Status verify() const;

 private:
  friend class MoeLoader;
  LoadedMoe(Device& device, MoeConfig whole, MoeConfig config, MoeLoadOptions options)
      : device_(device), whole_(std::move(whole)), config_(std::move(config)), options_(std::move(options)) {}

  struct Written;  // the tensors of write_packed()
  Written written() const;
  std::vector<PackedMatrix> matrices() const;
  Status allocate();
  Status take_memory();

  Device& device_;
  MoeConfig whole_, config_;
  MoeLoadOptions options_;
  MoeWeights weights_;
  std::vector<OwnedTensor> memory_;                    // none in a caller's memory
  PackedExperts up_, down_, shared_up_, shared_down_;  // shared: no experts where it has no path of its own
  PackedExperts latent_in_, latent_out_;               // no experts without a latent width
};

// Loads what weight_slots(sliced(whole, options.slice)) asks for, in whole.layout, which must be one that the device reads
// (nn/moe/layer.h: layout_for), straight from the mapped file. Where the device shares the host's memory, threads of the host pack:
// besides the weights themselves that needs less than 64 MiB. Elsewhere the device packs (nn/moe/expert_upload.h): that needs its
// memory for one matrix of one expert as it stands in the checkpoint, and 32 MiB of the host's; where a caller's tensors lie in the
// device's memory already, 64 MiB more, or one such matrix where that is larger. Pages of the file are released after it. kInvalidArgument
// names a caller's tensor in the memory of another device. kIo names a file that has become shorter since the checkpoint was opened.
// kCorrupt or kUnsupported names file and tensor, what was wanted and what was found (nn/moe/source.h); a NaN scale (255) of an
// expert also expert, row and block; a NaN or an infinity in bf16 its expert, row and column; an expert id in a hash table that is out of range, its row. kOutOfMemory says how many
// bytes the layer wants and how many are free.
Result<std::unique_ptr<LoadedMoe>> load_moe(Device& device, const Checkpoint& checkpoint,
                                            const MoeConfig& whole, const MoeLoadOptions& options);

}  // namespace sluice
