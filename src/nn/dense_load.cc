#include "nn/dense_load.h"

#include <algorithm>
#include <cstring>

#include "nn/upload_ring.h"
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

StoredType stored_as(DType dtype) {
  for (const Pair& p : kSame)
    if (p.dtype == dtype) return p.stored;
  return StoredType::kBool;  // no tensor of ours
}

bool widens(StoredType from, DType to) { return from == StoredType::kBF16 && to == DType::kF32; }

Result<const CheckpointTensor*> find_dense(const Checkpoint& checkpoint, const std::string& name,
                                           const std::vector<int64_t>& shape, DType dtype) {
  const auto found = checkpoint.find(name);
  if (!found.ok()) return found.status();
  const CheckpointTensor& t = *found.value();
  const bool known = t.type == stored_as(dtype) || widens(t.type, dtype);
  if (known && t.shape == shape) return &t;
  return Status{known ? Code::kCorrupt : Code::kUnsupported, place_of(t) + ": wanted " +
                                                                 stored_text(stored_as(dtype), shape) +
                                                                 ", found " + stored_text(t.type, t.shape)};
}

// Bytes that are widened at once.
constexpr int64_t kStage = int64_t{4} << 20;

}  // namespace

namespace {

// Bytes begin .. begin + bytes - 1 of a tensor, or a copy of them.
struct PartOfTensor {
  const CheckpointTensor* tensor;
  int64_t begin, bytes;
  const std::byte* data;
};

// Values of type T whose exponent is all ones: of those, a fraction of 0 is an infinity.
template <class T>
Status check_bits(const PartOfTensor& part, T exponent, T fraction, Numbers allowed) {
  constexpr int64_t kBlock = 4096;  // a block without one is a loop without branches
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  const int64_t count = part.bytes / kSize;
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
                                        std::to_string(part.begin / kSize + i)};
    }
  }
  return {};
}

Status check_part(const PartOfTensor& part, Numbers allowed) {
  const StoredType type = part.tensor->type;
  if (type == StoredType::kBF16) return check_bits<uint16_t>(part, 0x7f80, 0x007f, allowed);
  if (type == StoredType::kF16) return check_bits<uint16_t>(part, 0x7c00, 0x03ff, allowed);
  if (type == StoredType::kF32) return check_bits<uint32_t>(part, 0x7f800000, 0x007fffff, allowed);
  return {};
}

// Tensors one behind the other in a device's memory, as they are.
struct Copies {
  std::vector<const CheckpointTensor*> tensors;
  Numbers allowed = Numbers::kFinite;
  std::byte* to = nullptr;
};

// What one thread copies at once: a multiple of every element.
constexpr int64_t kPiece = int64_t{1} << 20;
// Less than so much is not worth threads and a ring.
constexpr int64_t kLarge = int64_t{4} << 20;

// The pieces of copies, and where each belongs.
struct PiecesOf {
  std::vector<PartOfTensor> from;
  std::vector<std::byte*> to;
  explicit PiecesOf(const Copies& copies) {
    std::byte* at = copies.to;
    for (const CheckpointTensor* t : copies.tensors)
      for (int64_t begin = 0; begin < t->bytes; begin += kPiece) {
        const int64_t bytes = std::min(kPiece, t->bytes - begin);
        from.push_back({t, begin, bytes, t->data + begin});
        to.push_back(at);
        at += bytes;
      }
  }
};

// Copies a piece, and looks at it while it is in the cache.
Status copy_piece(PartOfTensor piece, Numbers allowed, std::byte* to) {
  std::memcpy(to, piece.data, static_cast<size_t>(piece.bytes));
  piece.data = to;
  return check_part(piece, allowed);
}

Status copy_here(const Copies& copies, int threads) {
  const PiecesOf pieces(copies);
  std::vector<Status> status(pieces.from.size());
  parallel_for(threads, std::ssize(status), [&](int64_t i) {
    const auto at = static_cast<size_t>(i);
    status[at] = copy_piece(pieces.from[at], copies.allowed, pieces.to[at]);
  });
  for (Status& s : status) SLUICE_TRY(std::move(s));
  return {};
}

Status copy_through_ring(Device& device, const Copies& copies, int threads) {
  const PiecesOf pieces(copies);
  auto ring = UploadRing::make(device, {.threads = threads, .slot_bytes = kPiece});
  if (!ring.ok()) return ring.status();
  return ring.value()->run(
      std::ssize(pieces.from),
      {.read =
           [&](int64_t i, std::byte* slot) {
             return copy_piece(pieces.from[static_cast<size_t>(i)], copies.allowed, slot);
           },
       .send =
           [&](int64_t i, std::byte* slot) {
             const auto at = static_cast<size_t>(i);
             return device.copy(pieces.to[at], slot, static_cast<size_t>(pieces.from[at].bytes),
                                device.stream());
           }});
}

// Waits until all are there.
Status copy_all(Device& device, const Copies& copies, int threads) {
  int64_t bytes = 0;
  for (const CheckpointTensor* t : copies.tensors) bytes += t->bytes;
  if (bytes < kLarge) threads = 1;
  if (device.shares_host_memory()) return copy_here(copies, threads);
  if (bytes >= kLarge) return copy_through_ring(device, copies, threads);
  std::byte* to = copies.to;
  for (const CheckpointTensor* t : copies.tensors) {
    SLUICE_TRY(check_numbers(*t, copies.allowed));
    SLUICE_TRY(device.copy(to, t->data, static_cast<size_t>(t->bytes), device.stream()));
    to += t->bytes;
  }
  return device.wait(device.stream());
}

}  // namespace

Status check_numbers(const CheckpointTensor& tensor, Numbers allowed) {
  return check_part({&tensor, 0, tensor.bytes, tensor.data}, allowed);
}

Status copy_converted(Device& device, const CheckpointTensor& from, const Tensor& to) {
  const Stream stream = device.stream();
  if (!widens(from.type, to.dtype)) {
    SLUICE_TRY(device.copy(to.data, from.data, static_cast<size_t>(from.bytes), stream));
    return device.wait(stream);
  }
  std::vector<float> stage(static_cast<size_t>(std::min(from.bytes / 2, kStage / 4)));
  for (int64_t at = 0; at < from.bytes / 2;) {
    const int64_t count = std::min<int64_t>(from.bytes / 2 - at, kStage / 4);
    for (int64_t i = 0; i < count; ++i) {
      BF16 value;
      std::memcpy(&value, from.data + 2 * (at + i), sizeof value);
      stage[static_cast<size_t>(i)] = to_float(value);
    }
    SLUICE_TRY(device.copy(to.as<float>() + at, stage.data(), static_cast<size_t>(count * 4), stream));
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
  const Tensor& to = out.value().view();
  if (widens(t.type, wanted.dtype)) {
    SLUICE_TRY(check_numbers(t, wanted.allowed));
    SLUICE_TRY(copy_converted(device, t, to));
  } else {
    SLUICE_TRY(copy_all(device, {{&t}, wanted.allowed, to.as<std::byte>()}, threads));
  }
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
    SLUICE_TRY(check_numbers(*tensor.value(), Numbers::kFinite));
    found.push_back(tensor.value());
    features += part.features;
  }
  if (features == 0) return invalid("load_stacked: wanted at least one feature, found none");
  auto out = OwnedTensor::make(device, slot("", Role::kIn, dtype, {features}), parts[0].name);
  if (!out.ok()) return out;
  int64_t at = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    std::byte* to = out.value().view().as<std::byte>() + bytes_of(dtype, at);
    SLUICE_TRY(copy_converted(device, *found[i],
                              make_tensor(to, dtype, {parts[i].features}, out.value().view().where)));
    at += parts[i].features;
  }
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
    source.rows.push_back({.rows = t->shape[0], .w = t->data, .stride = 2 * stacked.width, .tensor = t});
  const int64_t bytes = panel_shape(matrix.features, false, matrix.width).code_bytes(false);
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
  SLUICE_TRY(
      copy_all(device, {stacked.tensors, Numbers::kFinite, out.value().view().as<std::byte>()}, threads));
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
    return unsupported(parts[0].name + ": wanted row_major or, in the host's memory, panels16 for " +
                       text(device.info().backend) + ", found " + std::string(word(layout)));
  auto out = panels ? pack_panels(device, stacked, threads) : stack_rows(device, stacked, threads);
  if (!out.ok()) return out;
  for (const CheckpointTensor* t : stacked.tensors) checkpoint.release(*t);
  return out;
}

}  // namespace sluice
