#include "nn/dense_load.h"

#include <algorithm>
#include <cstring>

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

// Values of type T whose exponent is all ones: of those, a fraction of 0 is an infinity.
template <class T>
Status check_bits(const CheckpointTensor& tensor, T exponent, T fraction, Numbers allowed) {
  constexpr int64_t kBlock = 4096;  // a block without one is a loop without branches
  const int64_t count = tensor.bytes / static_cast<int64_t>(sizeof(T));
  const auto at = [&](int64_t i) {
    T bits;
    std::memcpy(&bits, tensor.data + i * static_cast<int64_t>(sizeof bits), sizeof bits);
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
      return Status{Code::kCorrupt, place_of(tensor) + ": wanted " +
                                        (allowed == Numbers::kFinite ? "finite numbers" : "numbers") +
                                        ", found " + (nan ? "NaN" : "an infinity") + " at element " +
                                        std::to_string(i)};
    }
  }
  return {};
}

}  // namespace

Status check_numbers(const CheckpointTensor& tensor, Numbers allowed) {
  if (tensor.type == StoredType::kBF16) return check_bits<uint16_t>(tensor, 0x7f80, 0x007f, allowed);
  if (tensor.type == StoredType::kF16) return check_bits<uint16_t>(tensor, 0x7c00, 0x03ff, allowed);
  if (tensor.type == StoredType::kF32) return check_bits<uint32_t>(tensor, 0x7f800000, 0x007fffff, allowed);
  return {};
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

Result<OwnedTensor> load_dense(Device& device, const Checkpoint& checkpoint, const std::string& name,
                               std::initializer_list<int64_t> shape, DType dtype) {
  const auto found = find_dense(checkpoint, name, shape, dtype);
  if (!found.ok()) return found.status();
  auto out = OwnedTensor::make(device, slot("", Role::kIn, dtype, shape), place_of(*found.value()));
  if (!out.ok()) return out;
  SLUICE_TRY(copy_converted(device, *found.value(), out.value().view()));
  checkpoint.release(*found.value());
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
  int64_t at = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    std::byte* to = out.value().view().as<std::byte>() + bytes_of(dtype, at);
    SLUICE_TRY(copy_converted(device, *found[i],
                              make_tensor(to, dtype, {parts[i].features}, out.value().view().where)));
    at += parts[i].features;
  }
  return out;
}

Result<OwnedTensor> pack_dense(Device& device, const Checkpoint& checkpoint, std::span<const DensePart> parts,
                               int64_t width, int threads) {
  PackedMatrix matrix{.features = 0, .width = width, .w = DType::kBF16};
  MatrixSource source;
  for (const DensePart& part : parts) {
    const auto found = find_dense(checkpoint, part.name, {part.features, width}, DType::kBF16);
    if (!found.ok()) return found.status();
    source.rows.push_back(
        {.rows = part.features, .w = found.value()->data, .stride = 2 * width, .tensor = found.value()});
    matrix.features += part.features;
  }
  if (matrix.features == 0) return invalid("pack_dense: wanted at least one feature, found none");
  const int64_t bytes = panel_shape(matrix.features, false, width).code_bytes(false);
  auto out = OwnedTensor::make(device, slot("", Role::kIn, DType::kU8, {bytes}), parts[0].name);
  if (!out.ok()) return out;
  const auto packed = pack_rows(matrix, source, {out.value().view(), {}}, {.threads = threads});
  if (!packed.ok()) return Status{packed.status().code, parts[0].name + ": " + packed.status().message};
  for (const RowSpan& span : source.rows) checkpoint.release(*span.tensor);
  return out;
}

}  // namespace sluice
