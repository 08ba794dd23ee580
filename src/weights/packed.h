// Packed experts with a header: Sluice's own versioned format, so that no kernel ever reads bytes of another layout.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "weights/packing.h"

namespace sluice {

constexpr uint64_t kPackedMagic = 0x4b50454349554c53;  // "SLUICEPK"
constexpr uint32_t kPackedVersion = 2;                 // of the layouts in ops/

// The header of a packed tensor.
struct PackedHeader {
  uint64_t magic = kPackedMagic;
  uint32_t version = kPackedVersion;
  PackedMatrix matrix;  // of one expert; unpack_expert returns rows in its gate_order
  int64_t experts = 0;
  int64_t code_bytes = 0, scale_bytes = 0;  // of one expert; scale_bytes is 0 for bf16
  uint64_t fingerprint = 0;                 // a hash of the experts' fingerprints
};

struct PackedExperts {
  PackedHeader header;
  Tensor w;                            // u8[experts, code_bytes]
  Tensor scales;                       // u8[experts, scale_bytes], absent for bf16
  std::vector<uint64_t> fingerprints;  // of each expert's source bytes (weights/packing.h)
};

// Prepares the views for packing, without weights. kInvalidArgument: the tensors do not fit the matrix.
Result<PackedExperts> packed_experts(const PackedMatrix& matrix, int64_t experts, const Tensor& w,
                                     const Tensor& scales);
// kCorrupt names what differs: magic, version, layout, or a field of the matrix.
Status verify(const PackedHeader& header, const PackedMatrix& matrix, int64_t experts);
// kCorrupt names the first expert whose bytes have changed since packing. Reads all bytes; they must be in host memory.
Status verify_bytes(const PackedExperts& packed, int threads);
// The same for one expert whose bytes are given, even if the others are elsewhere.
Status verify_expert(const PackedExperts& packed, int64_t expert, const PackedWeights& bytes, int threads);
// The location of one expert's bytes.
PackedWeights bytes_of_expert(const PackedExperts& packed, int64_t expert);

// Packs one expert in host memory, as the first weights or over older ones; addresses do not change.
// Everything is checked before the first byte is written; NaN and infinite weights only if `check` asks for
// it (a first load checks while it packs).
enum class CheckFirst : uint8_t { kNo, kYes };
Status pack_expert(PackedExperts* packed, int64_t expert, const MatrixSource& from, int threads,
                   CheckFirst check);
// Records that an expert was packed elsewhere from rows with this fingerprint (weights/packing.h).
Status note_packed(PackedExperts* packed, int64_t expert, uint64_t fingerprint);
// Restores the checkpoint's rows of one expert bit for bit, in header.matrix.gate_order.
Status unpack_expert(const PackedExperts& packed, int64_t expert, const RowMajorWeights& to);

}  // namespace sluice
