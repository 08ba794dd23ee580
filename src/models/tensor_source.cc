#include "models/tensor_source.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

#include "weights/numbers.h"
#include "weights/stored_matrix.h"

namespace sluice {
namespace {

constexpr int64_t kTensorAlignment = 64;  // alignment of tensors in memory

// Bytes that a tensor needs in BF16, rounded up to the alignment.
int64_t room_of(const TensorSpec& spec) {
  const int64_t bytes = stored_bytes(StoredType::kBF16, spec.shape).value_or(0);
  return (bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
}

// The scales, converted to F32.
std::vector<float> scales_of(const CheckpointTensor& tensor) {
  std::vector<float> out(static_cast<size_t>(tensor.bytes / number_bytes(tensor.type, 1)));
  convert_numbers(tensor.type, tensor.data, std::ssize(out), DType::kF32,
                  reinterpret_cast<std::byte*>(out.data()));
  return out;
}

Status check_finite(const CheckpointTensor* tensor) {
  if (!tensor || !is_number(tensor->type)) return {};
  const std::vector<float> scales = scales_of(*tensor);
  const auto wrong = std::find_if(scales.begin(), scales.end(), [](float x) { return !std::isfinite(x); });
  if (wrong == scales.end()) return {};
  return {Code::kCorrupt, place_of(*tensor) + ": wanted finite numbers, found " +
                              (std::isnan(*wrong) ? "NaN" : "an infinity") + " at element " +
                              std::to_string(wrong - scales.begin())};
}

// The quantized format in which the files have a matrix that is read as BF16; empty: it is not quantized.
std::optional<WeightFormat> format_in(const Checkpoint& files, const TensorSpec& spec) {
  if (spec.type != StoredType::kBF16 || spec.shape.size() != 2) return {};
  const auto format = stored_format(files, spec.name, spec.shape[0], spec.shape[1]);
  return format && format->scaled() ? format : std::nullopt;
}
Result<RowSpan> span_in(const Checkpoint& files, const TensorSpec& spec, WeightFormat format) {
  return find_matrix(files, spec.name, format,
                     {.rows = spec.shape[0], .width = spec.shape[1], .count = spec.shape[0]});
}

// Converts a row to bf16; `stage` is the staging buffer of read_row().
void widen_row(const RowSpan& span, WeightFormat f, int64_t row, int64_t width, std::byte* stage,
               std::byte* to) {
  if (span.form == RowForm::kF8Blocks) return void(read_row(span, {}, row, width, to));
  const RowBytes bytes = read_row(span, f, row, width, stage);
  const auto* codes = reinterpret_cast<const uint8_t*>(bytes.codes);
  const auto* scales = reinterpret_cast<const uint8_t*>(bytes.scales);
  for (int64_t k = 0; k < width; ++k) {
    const double code =
        f.w == DType::kE4M3 ? to_float(E4M3{codes[k]}) : kE2M1Values[codes[k / 2] >> (k % 2 * 4) & 15];
    const BF16 value = to_bf16(static_cast<float>(code * weight_scale_at(f, scales, width, k)));
    std::memcpy(to + 2 * k, &value, sizeof value);
  }
}

}  // namespace

TensorSource TensorSource::of_files(std::unique_ptr<Checkpoint> file, int threads) {
  TensorSource out;
  out.file_ = std::move(file);
  out.workers_ = std::make_unique<Workers>(threads);
  return out;
}

TensorSource TensorSource::of_random(const std::vector<TensorSpec>& specs, const RandomOptions& options,
                                     int threads) {
  TensorSource out;
  out.random_ = std::make_unique<RandomWeights>(specs, options, threads);
  return out;
}

bool is_widened(const Checkpoint& files, const TensorSpec& spec) {
  return format_in(files, spec).has_value();
}

Status check_widened(const Checkpoint& files, const TensorSpec& spec) {
  const auto format = format_in(files, spec);
  return format ? span_in(files, spec, *format).status() : Status{};
}

Status TensorSource::check(const TensorSpec& spec) const {
  if (!file_) return {};
  return is_widened(spec) ? check_widened(*file_, spec)
                          : file_->find(spec.name, spec.type, spec.shape).status();
}

// Converts a quantized matrix to BF16.
Status TensorSource::widen(const TensorSpec& spec, std::byte* to) {
  const WeightFormat format = *format_in(*file_, spec);
  const auto found = span_in(*file_, spec, format);
  if (!found.ok()) return found.status();
  const RowSpan& span = found.value();
  SLUICE_TRY(file_->check_whole());
  SLUICE_TRY(check_finite(span.scale_tensor));
  SLUICE_TRY(check_finite(span.row_scale_tensor));
  const int64_t rows = spec.shape[0], width = spec.shape[1];
  workers_->run(f8_blocks(rows), [&](int64_t block) {
    std::vector<std::byte> stage(static_cast<size_t>(row_stage_bytes(format, width)));
    for (int64_t row = block * kF8Block; row < std::min(rows, (block + 1) * kF8Block); ++row)
      widen_row(span, format, row, width, stage.data(), to + 2 * row * width);
  });
  file_->release(*span.tensor);
  return {};
}

Result<const Checkpoint*> TensorSource::hold(std::span<const TensorSpec> specs) {
  if (random_) return random_->make(specs);
  int64_t wanted = 0;
  if (std::none_of(specs.begin(), specs.end(), [&](const TensorSpec& s) { return is_widened(s); }))
    return file_.get();
  // Loading does not convert tensors of a checkpoint in memory, so F32 and F16 are converted here.
  const auto is_converted = [&](const TensorSpec& spec) {
    const CheckpointTensor* t = file_->find_if_there(spec.name);
    return t && spec.type == StoredType::kBF16 && t->type != spec.type && is_number(t->type) &&
           t->shape == spec.shape;
  };
  for (const TensorSpec& spec : specs) wanted += is_widened(spec) || is_converted(spec) ? room_of(spec) : 0;
  held_.reset();
  if (wanted > capacity_) {
    memory_.reset(), capacity_ = 0;
    memory_.reset(new (std::nothrow) std::byte[static_cast<size_t>(wanted)]);
    if (!memory_)
      return out_of_memory(place() + ": wanted " + std::to_string(wanted) +
                           " bytes of host memory for tensors converted to bf16, found less");
    capacity_ = wanted;
  }
  std::vector<CheckpointTensor> tensors;
  std::byte* at = memory_.get();
  for (const TensorSpec& spec : specs) {
    const CheckpointTensor* t = file_->find_if_there(spec.name);
    if (spec.format.scaled()) {  // kept in its format, under the names in the files
      if (is_codes(spec))
        for (const CheckpointTensor* part : tensors_of_matrix(*file_, spec.name)) tensors.push_back(*part);
      continue;
    }
    if (!t && !is_widened(spec)) continue;  // the caller reports the missing tensor
    if (is_widened(spec)) {
      SLUICE_TRY(widen(spec, at));
    } else if (is_converted(spec)) {
      convert_numbers(t->type, t->data, t->bytes / number_bytes(t->type, 1), DType::kBF16, at);
    } else {
      tensors.push_back(*t);
      continue;
    }
    tensors.push_back({.name = spec.name, .type = StoredType::kBF16, .shape = spec.shape, .data = at});
    at += room_of(spec);
  }
  auto made = Checkpoint::of_memory(place(), std::move(tensors));
  if (!made.ok()) return made.status();
  held_ = std::move(made).value();
  return held_.get();
}

}  // namespace sluice
