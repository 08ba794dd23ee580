#include "ops/op.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace sluice {
namespace {

std::string wanted(const SlotSpec& spec) {
  return text(spec.dtype) + shape_text(spec.shape.data(), spec.rank);
}

Status mismatch(const SlotSpec& spec, const Tensor& tensor, const char* what) {
  return invalid(std::string(spec.name) + ": " + what + ": wanted " + wanted(spec) + ", found " +
                 text(tensor));
}

bool strides_fit(const SlotSpec& spec, const Tensor& tensor) {
  // The size of all rows in bits must fit into 63 bits.
  int64_t bits = 0;
  if (spec.rank > 0 && (__builtin_mul_overflow(tensor.shape[0], tensor.stride[0], &bits) ||
                        __builtin_mul_overflow(bits, int64_t{bits_of(spec.dtype)}, &bits)))
    return false;
  int64_t contiguous = 1;
  for (int i = spec.rank - 1; i >= 0; --i) {
    const bool free_rows = i == 0 && spec.rows == Rows::kMayBeStrided && tensor.stride[0] >= contiguous;
    if (tensor.shape[i] > 1 && tensor.stride[i] != contiguous && !free_rows) return false;
    contiguous *= tensor.shape[i];
  }
  return true;
}

}  // namespace

Status check_slot(const SlotSpec& spec, const Tensor& tensor, Backend where, int alignment_bytes) {
  if (!spec.used) {
    if (!tensor.present()) return {};
    return invalid(std::string(spec.name) + ": given as " + text(tensor) +
                   ", but the plan was made without it");
  }
  if (tensor.dtype != spec.dtype) return mismatch(spec, tensor, "dtype");
  if (tensor.rank != spec.rank) return mismatch(spec, tensor, "rank");
  bool empty = false;
  for (int i = 0; i < spec.rank; ++i) {
    if (tensor.shape[i] != spec.shape[i]) return mismatch(spec, tensor, "shape");
    empty |= spec.shape[i] == 0;
  }
  if (empty) return {};  // no element is accessed, so a null pointer is fine
  if (!tensor.present()) return mismatch(spec, tensor, "null pointer");
  if (tensor.where != where)
    return invalid(std::string(spec.name) + ": wanted memory of " + text(where) + ", found " +
                   text(tensor.where));
  if (!strides_fit(spec, tensor))
    return invalid(std::string(spec.name) + ": strides: wanted " + wanted(spec) +
                   (spec.rows == Rows::kMayBeStrided ? " with contiguous rows, less than 2^60 bytes in all"
                                                     : ", contiguous") +
                   ", found strides " + shape_text(tensor.stride.data(), tensor.rank));
  const int element_bytes = bits_of(spec.dtype) < 8 ? 1 : bits_of(spec.dtype) / 8;
  const int alignment = alignment_bytes > element_bytes ? alignment_bytes : element_bytes;
  if (reinterpret_cast<uintptr_t>(tensor.data) % static_cast<uintptr_t>(alignment) != 0)
    return invalid(std::string(spec.name) + ": wanted a pointer aligned to " + std::to_string(alignment) +
                   " bytes, found a pointer that is not");
  const int64_t apart = spec.rank >= 2 ? bytes_of(spec.dtype, tensor.stride[0]) : 0;
  if (spec.row_align > 1 &&
      (reinterpret_cast<uintptr_t>(tensor.data) % static_cast<uintptr_t>(spec.row_align) != 0 ||
       apart % spec.row_align != 0))
    return invalid(std::string(spec.name) + ": wanted rows that begin at multiples of " +
                   std::to_string(spec.row_align) + " bytes, found " +
                   (apart % spec.row_align != 0 ? "a row stride of " + std::to_string(apart) + " bytes"
                                                : std::string("a first row that does not")) +
                   "; set x_unaligned=1 to allow it");
  return {};
}

namespace {

// Converts a contiguous index to a storage index, for strided rows.
int64_t storage_index(const Tensor& t, int64_t flat) {
  const int64_t row = t.rank && t.shape[0] > 0 ? elements_of(t) / t.shape[0] : 1;
  return row > 0 && t.rank > 1 ? flat / row * t.stride[0] + flat % row : flat;
}

bool holds(const Tensor& t, int64_t index, uint8_t byte) {
  const int64_t width = bits_of(t.dtype) / 8;
  for (int64_t b = 0; b < width; ++b)
    if (t.as<uint8_t>()[index * width + b] != byte) return false;
  return true;
}

// Distance from the reference relative to the bound; above 1 is wrong.
double share_of_bound(double got, double want, double bound) {
  if (std::isnan(want)) return std::isnan(got) ? 0 : kInfinity;
  if (got == want) return 0;
  // An intermediate result may be infinite, so any result is accepted.
  if (!std::isfinite(bound)) return 0;
  const double error = std::abs(got - want);
  return bound > 0 && std::isfinite(error) ? error / bound : kInfinity;
}

std::string place(const Tensor& t, int64_t flat) {
  std::string out = "]";
  for (int i = t.rank - 1; i >= 0; --i) {
    out = (i ? ", " : "[") + std::to_string(flat % std::max<int64_t>(t.shape[i], 1)) + out;
    flat /= std::max<int64_t>(t.shape[i], 1);
  }
  return out;
}

}  // namespace

Comparison compare(const Expected& want, const Tensor& got, std::optional<uint8_t> poison) {
  Comparison out;
  const auto count = static_cast<int64_t>(want.value.size());
  if (count != elements_of(got))
    return {.wrong = count,
            .worst_share = kInfinity,
            .text = std::string(want.slot) + ": the reference has " + std::to_string(count) +
                    " elements, the tensor is " + text(got)};
  int64_t worst = -1;
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(i);
    const int64_t index = storage_index(got, i);
    double share = 0;
    if (!want.untouched.empty() && want.untouched[at]) {
      if (poison && !holds(got, index, *poison)) share = kInfinity;
    } else if (const double value = load(got, index); want.accept) {
      share = want.accept(at, value) ? 0 : kInfinity;
    } else {
      share = share_of_bound(value, want.value[at], want.bound.empty() ? 0 : want.bound[at]);
    }
    out.wrong += share > 1;
    if (share > out.worst_share) out.worst_share = share, worst = i;
  }
  if (worst < 0) return out;
  const auto at = static_cast<size_t>(worst);
  char line[200];
  std::snprintf(line, sizeof line, " is %.9g, want %.9g +- %.3g", load(got, storage_index(got, worst)),
                want.value[at], want.bound.empty() ? 0 : want.bound[at]);
  out.text = std::string(want.slot) + ": " + std::to_string(out.wrong) + " of " + std::to_string(count) +
             " elements wrong; the worst, " + place(got, worst) + "," + line;
  if (!want.untouched.empty() && want.untouched[at]) out.text += " (must not be written)";
  return out;
}

double load(const Tensor& tensor, int64_t i) {
  switch (tensor.dtype) {
    case DType::kF32:
      return tensor.as<float>()[i];
    case DType::kBF16:
      return to_float(tensor.as<BF16>()[i]);
    case DType::kE2M1:
      return kE2M1Values[(tensor.as<uint8_t>()[i / 2] >> (4 * (i % 2))) & 15];
    case DType::kE8M0:
      return e8m0_value(tensor.as<uint8_t>()[i]);
    case DType::kI32:
      return tensor.as<int32_t>()[i];
    case DType::kI64:
      return static_cast<double>(tensor.as<int64_t>()[i]);
    case DType::kI16:
      return tensor.as<int16_t>()[i];
    case DType::kU8:
      return tensor.as<uint8_t>()[i];
    case DType::kE4M3:
      return to_float(tensor.as<E4M3>()[i]);
  }
  return kNan;
}

double load2(const Tensor& tensor, int64_t row, int64_t column) {
  return load(tensor, row * tensor.stride[0] + column);
}

double half_ulp(DType dtype, double value) {
  if (!std::isfinite(value)) return 0;
  const int mantissa_bits = dtype == DType::kBF16 ? 8 : 24;  // including the implicit bit
  if (dtype != DType::kBF16 && dtype != DType::kF32) return 0;
  const int exponent = value == 0 ? -126 : std::max(std::ilogb(value), -126);
  return std::ldexp(1.0, exponent - mantissa_bits);
}

}  // namespace sluice
