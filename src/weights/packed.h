// Packed experts and what they are: Sluice's own versioned form, so that no kernel ever reads another layout's bytes.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "weights/packing.h"

namespace sluice {

constexpr uint64_t kPackedMagic = 0x4b50454349554c53;  // "SLUICEPK"
constexpr uint32_t kPackedVersion = 2;                 // of the layouts as ops/ says them

// What a packed tensor says of itself.
struct PackedHeader {
  uint64_t magic = kPackedMagic;
  uint32_t version = kPackedVersion;
  PackedMatrix matrix;  // of one expert; gate_order: the order in which unpack_expert returns rows
  int64_t experts = 0;
  int64_t code_bytes = 0, scale_bytes = 0;  // of one expert; scale_bytes 0 for bf16
  uint64_t fingerprint = 0;                 // a hash of the experts' own
};

struct PackedExperts {
  PackedHeader header;
  Tensor w;                            // u8[experts, code_bytes]
  Tensor scales;                       // u8[experts, scale_bytes], absent for bf16
  std::vector<uint64_t> fingerprints;  // of each expert's source bytes (weights/packing.h)
};

// The views to be packed into, empty of weights: kInvalidArgument if the tensors do not fit the matrix.
Result<PackedExperts> packed_experts(const PackedMatrix& matrix, int64_t experts, const Tensor& w,
                                     const Tensor& scales);
// kCorrupt says what differs: magic, version, layout, or a field of the matrix.
Status verify(const PackedHeader& header, const PackedMatrix& matrix, int64_t experts);
// kCorrupt names the first expert whose bytes are no longer those that were packed. Reads everything; in host memory.
Status verify_bytes(const PackedExperts& packed, int threads);
// The same of one expert, whose bytes are here, wherever the others lie.
Status verify_expert(const PackedExperts& packed, int64_t expert, const PackedWeights& bytes, int threads);
// Where the bytes of one expert lie.
PackedWeights bytes_of_expert(const PackedExperts& packed, int64_t expert);

// Packs one expert into its place in host memory, which does not move: for the first time or over an older one. Everything is checked before
// the first byte is written, weights that are no numbers too, when `check` says so (a fresh load checks while it packs).
enum class CheckFirst : uint8_t { kNo, kYes };
Status pack_expert(PackedExperts* packed, int64_t expert, const MatrixSource& from, int threads,
                   CheckFirst check);
// Records that an expert was packed elsewhere, from rows of this fingerprint (weights/packing.h).
Status note_packed(PackedExperts* packed, int64_t expert, uint64_t fingerprint);
// The checkpoint's rows of one expert, in header.matrix.gate_order, bit by bit.
Status unpack_expert(const PackedExperts& packed, int64_t expert, const RowMajorWeights& to);

}  // namespace sluice
