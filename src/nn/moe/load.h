// Loads an MoE layer from a checkpoint into device memory and packs it.
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
  int threads = 0;  // threads that pack; if the device packs, threads that read; 0: one per processor
  // The caller's device memory for the packed weights: at least moe_weight_bytes(), aligned to 256 bytes; it
  // must outlive the LoadedMoe. Empty: the library allocates the memory.
  std::span<std::byte> memory = {};
  // For a caller's tensors in device memory: bytes per copy to the host, or one matrix if that is larger.
  int64_t batch_bytes = int64_t{64} << 20;
  // Called on the caller's thread after each matrix, with the bytes of weights packed so far and the bytes of
  // the whole layer.
  std::function<void(int64_t bytes_done, int64_t bytes_total)> progress = {};
};

// kInvalidArgument names a caller's tensor in the memory of another device. kIo names a file that was truncated after it was opened.
Status check_readable(const Device& device, const Checkpoint& checkpoint);

// Bytes of a rank's packed weights, each tensor aligned to 256 bytes.
int64_t moe_weight_bytes(const MoeConfig& local);

// Receives bytes in order; an error stops the writing.
using ByteSink = std::function<Status(std::span<const std::byte>)>;

// One layer's weights, ready for Moe::forward of a layer planned for config(). The object owns the memory
// (unless options.memory is set); pointers are valid as long as the object lives.
class LoadedMoe {
 public:
  // Allocates memory for a rank's weights; replace() or read_packed() fills it. Only adapters of experts are set, to zero.
  // kOutOfMemory gives the bytes that the layer needs, including temporary memory of replace(), and the bytes
  // free. kInvalidArgument as in sliced().
  static Result<std::unique_ptr<LoadedMoe>> allocate(Device& device, const MoeConfig& whole,
                                                     const MoeLoadOptions& options);

  const MoeConfig& config() const { return config_; }  // this rank's
  const MoeWeights& weights() const { return weights_; }
  int64_t layer() const { return options_.layer; }
  int64_t bytes() const { return moe_weight_bytes(config_); }
  uint64_t fingerprint() const;  // hash of the checkpoint's bytes of all experts, including the shared one
  const MoeConfig& whole() const { return whole_; }
  const MoeLoadOptions& options() const { return options_; }

  // Overwrites one expert (`expert`: its id in the whole model) and its biases in place from another
  // checkpoint. Addresses do not change, so captured graphs stay valid. The layer must not run during the
  // call. The checkpoint may contain only that expert (nn/moe/source.h). Checks everything and allocates
  // temporary memory (as in load_moe) before writing the first byte. Errors as in load_moe.
  Status replace_expert(const Checkpoint& checkpoint, int64_t expert);
  Status replace_expert(const Checkpoint& checkpoint, int64_t expert, MoeNaming naming, int64_t layer);
  // Overwrites one LoRA adapter of the router and of the experts in place. The checkpoint has the tensors of weight_slots() whose names
  // contain "lora_", without their first dimension ("lora_a" [rank, hidden], "experts.up_lora_a" [experts, inner, width], a scale [1]), of
  // the whole layer; experts may be this rank's alone. Adapters of the experts are zeros until then. The layer must not run during the
  // call. Everything is checked before the first byte is written; errors as in load_moe. Temporary host memory: this rank's part of the
  // adapter, and the largest tensor if it is in device memory.
  Status replace_adapter(const Checkpoint& checkpoint, int64_t adapter);
  // Does the same for the whole layer, including router and shared expert. CheckFirst::kNo: NaN and infinite
  // weights and expert ids out of range are found only while packing, as in load_moe; after such an error the
  // weights are unusable.
  Status replace(const Checkpoint& checkpoint);
  Status replace(const Checkpoint& checkpoint, MoeNaming naming, int64_t layer,
                 CheckFirst check = CheckFirst::kYes);

  // The packed weights as a safetensors file: packed_bytes() is its size; write_packed() writes its bytes in
  // order, in pieces of at most 8 MiB. Metadata "sluice.packed" is the version of the layouts
  // (weights/packed.h), "sluice.config" this rank's config as text. The file has the tensors of
  // weight_slots(), then "sluice.fingerprints" (u64, one per expert: hash of its source bytes) and
  // "sluice.hashes" (u64, one per preceding tensor).
  Result<int64_t> packed_bytes() const;
  Status write_packed(const ByteSink& sink) const;
  // Overwrites all weights in place with the bytes of such a file in host memory. kCorrupt names what differs
  // (version, a field of the config, a tensor, a tensor's hash), what was wanted and what was found; in that
  // case nothing is written.
  Status read_packed(std::span<const std::byte> file);
  // Reads all packed bytes. kCorrupt names the layer and the first expert whose bytes have changed since
  // packing.
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
  Status clear_adapters();  // sets the adapters of the experts to zero

  Device& device_;
  MoeConfig whole_, config_;
  MoeLoadOptions options_;
  MoeWeights weights_;
  std::vector<OwnedTensor> memory_;                    // empty if the caller supplied the memory
  PackedExperts up_, down_, shared_up_, shared_down_;  // shared_*: set with a separate shared expert
  PackedExperts latent_in_, latent_out_;               // empty if latent is 0
};

// Loads the tensors of weight_slots(sliced(whole, options.slice)) directly from the mapped file, and releases
// the file's pages after reading. whole.layout must be the layout that the device reads (layout_for).
//
// Memory  Temporary: if the device shares the host's memory, host threads pack and need less than 64 MiB.
//         Otherwise the device packs (nn/moe/expert_upload.h), which needs device memory for one matrix of
//         one expert as stored in the checkpoint, and 32 MiB of host memory. A caller's tensors in device
//         memory need another 64 MiB of host memory, or one such matrix if that is larger.
// Errors  kInvalidArgument names a caller's tensor in the memory of another device. kIo names a file that was
//         truncated after the checkpoint was opened. kCorrupt and kUnsupported name the file and the tensor,
//         what was wanted and what was found (nn/moe/source.h); for a NaN scale also the expert, row and
//         block; for a NaN or infinite weight the expert, row and column; for an expert id out of range in a
//         hash table the row. kOutOfMemory gives the bytes that the layer needs and the bytes free.
Result<std::unique_ptr<LoadedMoe>> load_moe(Device& device, const Checkpoint& checkpoint,
                                            const MoeConfig& whole, const MoeLoadOptions& options);

}  // namespace sluice
