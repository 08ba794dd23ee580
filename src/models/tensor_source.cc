#include "models/tensor_source.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

#include "weights/numbers.h"
#include "weights/row_span.h"

namespace sluice {
namespace {

constexpr int64_t kTensorAlignment = 64;  // alignment of tensors in memory
constexpr std::string_view kWeight = ".weight";

// Memory for a tensor in BF16.
int64_t room_of(const TensorSpec& spec) {
  const int64_t bytes = stored_bytes(StoredType::kBF16, spec.shape).value_or(0);
  return (bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
}

// The scales as F32, which is the usual type in files.
std::vector<float> scales_of(const CheckpointTensor& tensor) {
  std::vector<float> out(static_cast<size_t>(tensor.bytes / number_bytes(tensor.type, 1)));
  convert_numbers(tensor.type, tensor.data, std::ssize(out), DType::kF32,
                  reinterpret_cast<std::byte*>(out.data()));
  return out;
}

Status check_finite(const CheckpointTensor& tensor, const std::vector<float>& scales) {
  const auto wrong = std::find_if(scales.begin(), scales.end(), [](float x) { return !std::isfinite(x); });
  if (wrong == scales.end()) return {};
  return {Code::kCorrupt, place_of(tensor) + ": wanted finite numbers, found " +
                              (std::isnan(*wrong) ? "NaN" : "an infinity") + " at element " +
                              std::to_string(wrong - scales.begin())};
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

std::string name_of_scales(const TensorSpec& spec) { return spec.name + "_scale_inv"; }

bool is_in_fp8(const Checkpoint& files, const TensorSpec& spec) {
  if (spec.type != StoredType::kBF16 || spec.shape.size() != 2 || !spec.name.ends_with(kWeight)) return false;
  const CheckpointTensor* t = files.find_if_there(spec.name);
  return t && t->type == StoredType::kF8E4M3;
}

Status check_fp8(const Checkpoint& files, const TensorSpec& spec) {
  SLUICE_TRY(files.find(spec.name, StoredType::kF8E4M3, spec.shape).status());
  return files
      .find(name_of_scales(spec), StoredType::kF32, {f8_blocks(spec.shape[0]), f8_blocks(spec.shape[1])})
      .status();
}

Status TensorSource::check(const TensorSpec& spec) const {
  if (!file_) return {};
  return is_fp8(spec) ? check_fp8(*file_, spec) : file_->find(spec.name, spec.type, spec.shape).status();
}

// Writes a tensor in FP8 to `to` as BF16.
Status TensorSource::widen(const TensorSpec& spec, std::byte* to) {
  SLUICE_TRY(check(spec));
  const CheckpointTensor& codes = *file_->find_if_there(spec.name);
  const CheckpointTensor& stored = *file_->find_if_there(name_of_scales(spec));
  SLUICE_TRY(file_->check_whole());
  const std::vector<float> scales = scales_of(stored);
  SLUICE_TRY(check_finite(stored, scales));
  const int64_t rows = spec.shape[0], width = spec.shape[1];
  const RowSpan span{.form = RowForm::kF8Blocks,
                     .type = StoredType::kF8E4M3,
                     .rows = rows,
                     .w = codes.data,
                     .stride = width,
                     .scales = reinterpret_cast<const std::byte*>(scales.data()),
                     .scale_stride = 4 * f8_blocks(width),
                     .scale_type = StoredType::kF32,
                     .tensor = &codes,
                     .scale_tensor = &stored};
  workers_->run(f8_blocks(rows), [&](int64_t block) {
    for (int64_t row = block * kF8Block; row < std::min(rows, (block + 1) * kF8Block); ++row)
      read_row(span, {}, row, width, to + 2 * row * width);
  });
  file_->release(codes);
  return {};
}

Result<const Checkpoint*> TensorSource::hold(std::span<const TensorSpec> specs) {
  if (random_) return random_->make(specs);
  int64_t wanted = 0;
  if (std::none_of(specs.begin(), specs.end(), [&](const TensorSpec& s) { return is_fp8(s); }))
    return file_.get();
  // The caller does not convert tensors in memory, so other number types are converted here too.
  const auto is_converted = [&](const TensorSpec& spec) {
    const CheckpointTensor* t = file_->find_if_there(spec.name);
    return t && spec.type == StoredType::kBF16 && t->type != spec.type && is_number(t->type) &&
           t->shape == spec.shape;
  };
  for (const TensorSpec& spec : specs) wanted += is_fp8(spec) || is_converted(spec) ? room_of(spec) : 0;
  held_.reset();
  if (wanted > capacity_) {
    memory_.reset(), capacity_ = 0;
    memory_.reset(new (std::nothrow) std::byte[static_cast<size_t>(wanted)]);
    if (!memory_)
      return out_of_memory(place() + ": wanted " + std::to_string(wanted) +
                           " bytes of host memory for tensors in FP8, found less");
    capacity_ = wanted;
  }
  std::vector<CheckpointTensor> tensors;
  std::byte* at = memory_.get();
  for (const TensorSpec& spec : specs) {
    const CheckpointTensor* t = file_->find_if_there(spec.name);
    if (!t) continue;  // the reader refuses it by name
    if (is_fp8(spec)) {
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
