// Packed experts with a versioned header. The header is checked before a kernel reads the bytes, so no kernel
// reads bytes of another layout.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "weights/packing.h"

namespace sluice {

constexpr uint64_t kPackedMagic = 0x4b50454349554c53;  // "SLUICEPK"
constexpr uint32_t kPackedVersion = 2;                 // version of the layouts in ops/

// The header of a packed tensor.
struct PackedHeader {
  uint64_t magic = kPackedMagic;
  uint32_t version = kPackedVersion;
  PackedMatrix matrix;  // one expert's; unpack_expert returns rows in this gate_order
  int64_t experts = 0;
  int64_t code_bytes = 0, scale_bytes = 0;  // per expert; scale_bytes is 0 for bf16
  uint64_t fingerprint = 0;                 // hash of the fingerprints of all experts
};

struct PackedExperts {
  PackedHeader header;
  Tensor w;                            // u8[experts, code_bytes]
  Tensor scales;                       // u8[experts, scale_bytes], absent for bf16
  std::vector<uint64_t> fingerprints;  // one per expert: hash of its source bytes (weights/packing.h)
};

// Wraps tensors whose weights are not packed yet; pack_expert() writes them. kInvalidArgument: a tensor has
// the wrong size for the matrix.
Result<PackedExperts> packed_experts(const PackedMatrix& matrix, int64_t experts, const Tensor& w,
                                     const Tensor& scales);
// kCorrupt names what differs: magic, version, layout, or a field of the matrix.
Status verify(const PackedHeader& header, const PackedMatrix& matrix, int64_t experts);
// Reads all bytes, which must be in host memory. kCorrupt names the first expert whose bytes have changed
// since packing.
Status verify_bytes(const PackedExperts& packed, int threads);
// Checks one expert whose bytes the caller passes in host memory. The bytes in `packed` are not read and may
// be in device memory.
Status verify_expert(const PackedExperts& packed, int64_t expert, const PackedWeights& bytes, int threads);
// The location of one expert's bytes.
PackedWeights bytes_of_expert(const PackedExperts& packed, int64_t expert);

// Packs one expert in host memory, for the first time or as a replacement; addresses do not change. Checks
// all arguments before it writes the first byte. kYes also checks for NaN and infinite weights before
// writing; with kNo, as in a first load, packing finds them when part of the expert is already written.
enum class CheckFirst : uint8_t { kNo, kYes };
Status pack_expert(PackedExperts* packed, int64_t expert, const MatrixSource& from, int threads,
                   CheckFirst check);
// Records that an expert was packed elsewhere from rows with this fingerprint (weights/packing.h).
Status note_packed(PackedExperts* packed, int64_t expert, uint64_t fingerprint);
// Restores the checkpoint's rows of one expert bit for bit, in header.matrix.gate_order.
Status unpack_expert(const PackedExperts& packed, int64_t expert, const RowMajorWeights& to);

}  // namespace sluice
