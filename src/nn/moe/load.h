// Loads an MoE layer from a checkpoint into device memory, packed.
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
  int threads = 0;  // threads that pack, or that read if the device packs; 0: one for each processor
  // Device memory of the caller for the packed weights: at least moe_weight_bytes(), aligned to 256 bytes;
  // it must outlive them. Empty: the library allocates the memory.
  std::span<std::byte> memory = {};
  // For a caller's tensors in device memory: bytes copied to the host at once; one matrix if that is larger.
  int64_t batch_bytes = int64_t{64} << 20;
  // Called on the caller's thread after each matrix: bytes of weights packed so far, and of the whole layer.
  std::function<void(int64_t bytes_done, int64_t bytes_total)> progress = {};
};

// Bytes of a rank's packed weights, each tensor aligned to 256 bytes.
int64_t moe_weight_bytes(const MoeConfig& local);

// Receives bytes in order; an error stops the writing.
using ByteSink = std::function<Status(std::span<const std::byte>)>;

// One layer's weights, ready for Moe::forward of config(). The object owns the memory; pointers are valid as long as it lives.
class LoadedMoe {
 public:
  // Allocates memory for a rank's weights without writing to it; replace() or read_packed() fills it.
  // kOutOfMemory gives the bytes that the layer wants, including what replace() needs temporarily, and the
  // bytes free; kInvalidArgument as in sliced().
  static Result<std::unique_ptr<LoadedMoe>> allocate(Device& device, const MoeConfig& whole,
                                                     const MoeLoadOptions& options);

  const MoeConfig& config() const { return config_; }  // of this rank
  const MoeWeights& weights() const { return weights_; }
  int64_t layer() const { return options_.layer; }
  int64_t bytes() const { return moe_weight_bytes(config_); }
  uint64_t fingerprint() const;  // hash of all experts, the shared one included, in the checkpoint's form
  const MoeConfig& whole() const { return whole_; }
  const MoeLoadOptions& options() const { return options_; }

  // Overwrites one expert (its number in the whole model) and its biases in place with another
  // checkpoint's: pointers stay, and captured graphs stay valid. Nothing may run meanwhile. The checkpoint
  // may hold that expert alone (nn/moe/source.h). Everything is checked, and temporary memory (as in
  // load_moe) is allocated, before the first byte is written. Errors as in load_moe.
  Status replace_expert(const Checkpoint& checkpoint, int64_t expert);
  Status replace_expert(const Checkpoint& checkpoint, int64_t expert, MoeNaming naming, int64_t layer);
  // Does the same for the whole layer, router and shared expert included. CheckFirst::kNo: NaN and infinite
  // weights and expert ids out of range are found only while packing, as in load_moe; after such an error
  // the weights are unusable.
  Status replace(const Checkpoint& checkpoint);
  Status replace(const Checkpoint& checkpoint, MoeNaming naming, int64_t layer,
                 CheckFirst check = CheckFirst::kYes);

  // The packed weights as a safetensors file: its size, and its bytes in order, in pieces of at most 8 MiB.
  // Metadata "sluice.packed" is the version of the layouts (weights/packed.h), "sluice.config" is this
  // rank's config as text. The tensors are those of weight_slots(), then "sluice.fingerprints", u64 of each
  // expert's source, and "sluice.hashes", u64 of each tensor before it.
  Result<int64_t> packed_bytes() const;
  Status write_packed(const ByteSink& sink) const;
  // Overwrites all weights in place with such bytes, given in host memory. kCorrupt names what differs (version, a
  // field of the config, a tensor, a tensor's hash), what was wanted and what was found; nothing is written then.
  Status read_packed(std::span<const std::byte> file);
  // Reads all packed bytes. kCorrupt names the layer and the first expert whose bytes have changed since packing.
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
  std::vector<OwnedTensor> memory_;                    // empty if the caller gave the memory
  PackedExperts up_, down_, shared_up_, shared_down_;  // shared: no experts without a separate path
  PackedExperts latent_in_, latent_out_;               // no experts without a latent width
};

// Loads the tensors of weight_slots(sliced(whole, options.slice)) directly from the mapped file.
// whole.layout must be a layout that the device reads (layout_for in nn/moe/layer.h).
// Temporary memory: if the device shares the host's memory, host threads pack and need less than 64 MiB.
// Otherwise the device packs (nn/moe/expert_upload.h), which takes device memory for one matrix of one expert
// as the checkpoint stores it, and 32 MiB of host memory; if a caller's tensors are already in device memory,
// another 64 MiB, or one such matrix if that is larger. Pages of the file are released after reading.
// kInvalidArgument names a caller's tensor in the memory of another device. kIo names a file that has
// become shorter since the checkpoint was opened. kCorrupt or kUnsupported names file and tensor, what was
// wanted and what was found (nn/moe/source.h); for a NaN scale (255) also expert, row and block; for a NaN
// or an infinity in bf16 its expert, row and column; for an expert id out of range in a hash table its row.
// kOutOfMemory gives the bytes that the layer wants and the bytes free.
Result<std::unique_ptr<LoadedMoe>> load_moe(Device& device, const Checkpoint& checkpoint,
                                            const MoeConfig& whole, const MoeLoadOptions& options);

}  // namespace sluice
