#include "nn/dense_load.h"

#include <algorithm>
#include <cstring>

#include "nn/upload_ring.h"
#include "weights/numbers.h"
#include "weights/packed.h"

namespace sluice {
namespace {

struct Pair {
  StoredType stored;
  DType dtype;
};
constexpr Pair kSame[] = {{StoredType::kBF16, DType::kBF16}, {StoredType::kF32, DType::kF32},
                          {StoredType::kU8, DType::kU8},     {StoredType::kI32, DType::kI32},
                          {StoredType::kI64, DType::kI64},   {StoredType::kI16, DType::kI16}};

StoredType stored_dense(DType dtype) {
  for (const Pair& p : kSame)
    if (p.dtype == dtype) return p.stored;
  return StoredType::kBool;  // not a number type, so no tensor matches
}

// Whether a tensor can be loaded as `dtype`: unchanged, converted (Checkpoint::holds), or widened from a
// caller's bf16 to f32, which is exact.
bool becomes(const Checkpoint& checkpoint, const CheckpointTensor& t, DType dtype) {
  return checkpoint.holds(t, stored_dense(dtype)) || (t.type == StoredType::kBF16 && dtype == DType::kF32);
}

// Bytes converted at a time.
constexpr int64_t kStage = int64_t{4} << 20;

}  // namespace

Result<const CheckpointTensor*> find_dense(const Checkpoint& checkpoint, const std::string& name,
                                           const std::vector<int64_t>& shape, DType dtype) {
  const auto found = checkpoint.find(name);
  if (!found.ok()) return found.status();
  const CheckpointTensor& t = *found.value();
  const bool known = becomes(checkpoint, t, dtype);
  if (known && t.shape == shape) return &t;
  return Status{known ? Code::kCorrupt : Code::kUnsupported, place_of(t) + ": wanted " +
                                                                 stored_text(stored_dense(dtype), shape) +
                                                                 ", found " + stored_text(t.type, t.shape)};
}

namespace {

// Elements first .. first + count - 1 of a tensor. `data` points to the tensor or to a converted copy.
struct PartOfTensor {
  const CheckpointTensor* tensor;
  int64_t first, count;
  const std::byte* data;
  StoredType type;
};

// Checks values of type T whose exponent bits are all ones: a zero fraction means infinity, any other means
// NaN.
template <class T>
Status check_bits(const PartOfTensor& part, T exponent, T fraction, Numbers allowed) {
  constexpr int64_t kBlock = 4096;  // most blocks have no such value and are checked without branches
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  const int64_t count = part.count;
  const auto at = [&](int64_t i) {
    T bits;
    std::memcpy(&bits, part.data + i * kSize, sizeof bits);
    return bits;
  };
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, count);
    int any = 0;
    for (int64_t i = begin; i < end; ++i) any |= (at(i) & exponent) == exponent;
    for (int64_t i = begin; any && i < end; ++i) {
      if ((at(i) & exponent) != exponent) continue;
      const bool nan = (at(i) & fraction) != 0;
      if (!nan && allowed == Numbers::kNoNan) continue;
      return Status{Code::kCorrupt, place_of(*part.tensor) + ": wanted " +
                                        (allowed == Numbers::kFinite ? "finite numbers" : "numbers") +
                                        ", found " + (nan ? "NaN" : "an infinity") + " at element " +
                                        std::to_string(part.first + i)};
    }
  }
  return {};
}

Status check_part(const PartOfTensor& part, Numbers allowed) {
  const StoredType type = part.type;
  if (type == StoredType::kBF16) return check_bits<uint16_t>(part, 0x7f80, 0x007f, allowed);
  if (type == StoredType::kF16) return check_bits<uint16_t>(part, 0x7c00, 0x03ff, allowed);
  if (type == StoredType::kF32) return check_bits<uint32_t>(part, 0x7f800000, 0x007fffff, allowed);
  return {};
}

// Tensors to copy to adjacent places in device memory, as `dtype`.
struct Copies {
  std::vector<const CheckpointTensor*> tensors;
  Numbers allowed = Numbers::kFinite;
  DType dtype = DType::kBF16;
  std::byte* to = nullptr;
};

// Bytes of a piece that a thread copies, in the wider of the stored and the loaded type; a multiple of every
// element size.
constexpr int64_t kUploadPiece = int64_t{1} << 20;
// Bytes below which threads and an upload ring cost more than they save.
constexpr int64_t kLarge = int64_t{4} << 20;

// The pieces of all copies, and their destinations.
struct PiecesOf {
  std::vector<PartOfTensor> from;
  std::vector<std::byte*> to;
  explicit PiecesOf(const Copies& copies) {
    std::byte* at = copies.to;
    const int64_t size = number_bytes(stored_dense(copies.dtype), 1);
    for (const CheckpointTensor* t : copies.tensors) {
      const int64_t stored = number_bytes(t->type, 1), all = t->bytes / stored,
                    piece = kUploadPiece / std::max(stored, size);
      for (int64_t first = 0; first < all; first += piece) {
        const int64_t count = std::min(piece, all - first), bytes = count * size;
        from.push_back({t, first, count, t->data + first * stored, t->type});
        to.push_back(at);
        at += bytes;
      }
    }
  }
  int64_t bytes_of(size_t i, const Copies& copies) const {
    return from[i].count * number_bytes(stored_dense(copies.dtype), 1);
  }
};

// Copies a piece, then checks it while it is in the processor's cache.
Status copy_piece(PartOfTensor piece, const Copies& copies, std::byte* to) {
  const StoredType wanted = stored_dense(copies.dtype);
  if (piece.type == wanted)
    std::memcpy(to, piece.data, static_cast<size_t>(piece.count * number_bytes(wanted, 1)));
  else
    convert_numbers(piece.type, piece.data, piece.count, copies.dtype, to);
  piece.data = to, piece.type = wanted;
  return check_part(piece, copies.allowed);
}

Status copy_here(const Copies& copies, int threads) {
  const PiecesOf pieces(copies);
  std::vector<Status> status(pieces.from.size());
  parallel_for(threads, std::ssize(status), [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    status[at] = copy_piece(pieces.from[at], copies, pieces.to[at]);
  });
  for (Status& s : status) SLUICE_TRY(std::move(s));
  return {};
}

Status copy_through_ring(Device& device, const Copies& copies, int threads) {
  const PiecesOf pieces(copies);
  auto ring = UploadRing::make(device, {.threads = threads, .slot_bytes = kUploadPiece});
  if (!ring.ok()) return ring.status();
  return ring.value()->run(
      std::ssize(pieces.from),
      {.read = [&](int64_t i,
                   std::byte* slot) { return copy_piece(pieces.from[static_cast<size_t>(i)], copies, slot); },
       .send =
           [&](int64_t i, std::byte* slot) {
             const auto at = static_cast<size_t>(i);
             return device.copy(pieces.to[at], slot, static_cast<size_t>(pieces.bytes_of(at, copies)),
                                device.stream());
           }});
}

// Returns when all copies are complete.
Status copy_all(Device& device, const Copies& copies, int threads) {
  int64_t bytes = 0;
  for (const CheckpointTensor* t : copies.tensors) bytes += t->bytes;
  if (bytes < kLarge) threads = 1;
  if (device.shares_host_memory()) return copy_here(copies, threads);
  if (bytes >= kLarge) return copy_through_ring(device, copies, threads);
  int64_t wanted = 0;
  for (const CheckpointTensor* t : copies.tensors)
    wanted += t->bytes / number_bytes(t->type, 1) * number_bytes(stored_dense(copies.dtype), 1);
  std::vector<std::byte> near(static_cast<size_t>(wanted));
  Copies here = copies;
  here.to = near.data();
  SLUICE_TRY(copy_here(here, threads));
  SLUICE_TRY(device.copy(copies.to, near.data(), near.size(), device.stream()));
  return device.wait(device.stream());
}

}  // namespace

Status check_numbers(const CheckpointTensor& tensor, Numbers allowed) {
  return check_part({&tensor, 0, tensor.bytes / number_bytes(tensor.type, 1), tensor.data, tensor.type},
                    allowed);
}

Status copy_converted(Device& device, const CheckpointTensor& from, const Tensor& to) {
  const Stream stream = device.stream();
  if (from.type == stored_dense(to.dtype)) {
    SLUICE_TRY(device.copy(to.data, from.data, static_cast<size_t>(from.bytes), stream));
    return device.wait(stream);
  }
  const int64_t stored = number_bytes(from.type, 1), size = bytes_of(to.dtype, 1), all = from.bytes / stored;
  std::vector<std::byte> stage(static_cast<size_t>(std::min(all, kStage / 4) * size));
  for (int64_t at = 0; at < all;) {
    const int64_t count = std::min<int64_t>(all - at, kStage / 4);
    convert_numbers(from.type, from.data + at * stored, count, to.dtype, stage.data());
    SLUICE_TRY(
        device.copy(to.as<std::byte>() + at * size, stage.data(), static_cast<size_t>(count * size), stream));
    SLUICE_TRY(device.wait(stream));
    at += count;
  }
  return {};
}

Result<OwnedTensor> load_dense(Device& device, const Checkpoint& checkpoint, const DenseTensor& wanted,
                               int threads) {
  const auto found = find_dense(checkpoint, wanted.name, wanted.shape, wanted.dtype);
  if (!found.ok()) return found.status();
  const CheckpointTensor& t = *found.value();
  SlotSpec spec = slot("", Role::kIn, wanted.dtype, {});
  spec.rank = static_cast<int>(wanted.shape.size());
  std::copy(wanted.shape.begin(), wanted.shape.end(), spec.shape.begin());
  auto out = OwnedTensor::make(device, spec, place_of(t));
  if (!out.ok()) return out;
  SLUICE_TRY(
      copy_all(device, {{&t}, wanted.allowed, wanted.dtype, out.value().view().as<std::byte>()}, threads));
  checkpoint.release(t);
  return out;
}

Result<OwnedTensor> load_stacked(Device& device, const Checkpoint& checkpoint,
                                 std::span<const DensePart> parts, DType dtype) {
  std::vector<const CheckpointTensor*> found;
  int64_t features = 0;
  for (const DensePart& part : parts) {
    const auto tensor = find_dense(checkpoint, part.name, {part.features}, dtype);
    if (!tensor.ok()) return tensor.status();
    found.push_back(tensor.value());
    features += part.features;
  }
  if (features == 0) return invalid("load_stacked: wanted at least one feature, found none");
  auto out = OwnedTensor::make(device, slot("", Role::kIn, dtype, {features}), parts[0].name);
  if (!out.ok()) return out;
  SLUICE_TRY(copy_all(device, {found, Numbers::kFinite, dtype, out.value().view().as<std::byte>()}, 1));
  return out;
}

namespace {

struct Stacked {
  std::vector<const CheckpointTensor*> tensors;
  int64_t features = 0, width = 0;
};

Result<OwnedTensor> pack_panels(Device& device, const Stacked& stacked, int threads) {
  const PackedMatrix matrix{.features = stacked.features, .width = stacked.width, .w = DType::kBF16};
  MatrixSource source;
  for (const CheckpointTensor* t : stacked.tensors)
    source.rows.push_back({.type = t->type,
                           .rows = t->shape[0],
                           .w = t->data,
                           .stride = number_bytes(t->type, 1) * stacked.width,
                           .tensor = t});
  const int64_t bytes = panel_shape(matrix.features, false, matrix.width).code_bytes({});
  const std::string& name = stacked.tensors[0]->name;
  auto out = OwnedTensor::make(device, slot("", Role::kIn, DType::kU8, {bytes}), name);
  if (!out.ok()) return out;
  const auto packed = pack_rows(matrix, source, {out.value().view(), {}}, {.threads = threads});
  if (packed.ok()) return out;
  for (const CheckpointTensor* t : stacked.tensors) SLUICE_TRY(check_numbers(*t, Numbers::kFinite));
  return Status{packed.status().code, name + ": " + packed.status().message};
}

Result<OwnedTensor> stack_rows(Device& device, const Stacked& stacked, int threads) {
  auto out = OwnedTensor::make(device, slot("", Role::kIn, DType::kBF16, {stacked.features, stacked.width}),
                               stacked.tensors[0]->name);
  if (!out.ok()) return out;
  SLUICE_TRY(copy_all(device,
                      {stacked.tensors, Numbers::kFinite, DType::kBF16, out.value().view().as<std::byte>()},
                      threads));
  return out;
}

}  // namespace

Result<OwnedTensor> pack_dense(Device& device, const Checkpoint& checkpoint, std::span<const DensePart> parts,
                               int64_t width, int threads) {
  Stacked stacked{.tensors = {}, .features = 0, .width = width};
  for (const DensePart& part : parts) {
    const auto found = find_dense(checkpoint, part.name, {part.features, width}, DType::kBF16);
    if (!found.ok()) return found.status();
    stacked.tensors.push_back(found.value());
    stacked.features += part.features;
  }
  if (stacked.features == 0) return invalid("pack_dense: wanted at least one feature, found none");
  const WeightLayout layout = device.info().layout;
  const bool panels = layout == WeightLayout::kPanels16 && device.shares_host_memory();
  if (!panels && layout != WeightLayout::kRowMajor)
    return unsupported(parts[0].name + ": wanted row_major, or panels16 in host memory, for " +
                       text(device.info().backend) + ", found " + std::string(word(layout)));
  auto out = panels ? pack_panels(device, stacked, threads) : stack_rows(device, stacked, threads);
  if (!out.ok()) return out;
  for (const CheckpointTensor* t : stacked.tensors) checkpoint.release(*t);
  return out;
}

}  // namespace sluice
