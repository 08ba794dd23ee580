#include "weights/stored_matrix.h"

#include <algorithm>

#include "weights/numbers.h"

namespace sluice {
namespace {

constexpr std::string_view kWeight = ".weight";

constexpr WeightFormat kFp8Blocks{DType::kE4M3, WeightScales::kBlocks};
constexpr WeightFormat kFp8Rows{DType::kE4M3, WeightScales::kRows};
constexpr WeightFormat kMxfp8{DType::kE4M3, WeightScales::kMx};
constexpr WeightFormat kMxfp4{DType::kE2M1, WeightScales::kMx};
constexpr WeightFormat kNvfp4{DType::kE2M1, WeightScales::kNv};

// Sources: deepseek-ai/DeepSeek-V3 README_WEIGHTS.md and DeepSeek-V4's inference code; FP8 checkpoints of
// Qwen and MiniMax; the exporters of compressed-tensors, NVIDIA Model Optimizer and AMD Quark; vLLM's loader
// for Mistral's native names. `weight_scale_inv` multiplies the codes, in spite of its name.
constexpr StoredForm kForms[] = {
    {.format = kFp8Blocks, .scales = ".weight_scale_inv"},
    {.format = kFp8Blocks, .scales = ".weight_scale"},  // compressed-tensors
    {.format = kFp8Blocks, .scales = ".scale"},         // DeepSeek V4
    {.format = kFp8Rows, .row_scale = ".weight_scale"},
    {.format = kFp8Rows, .row_scale = ".qscale_weight"},                       // Mistral
    {.format = kMxfp8, .scales = ".weight_scale_inv"},                         // MiniMax M3
    {.format = kMxfp8, .scales = ".weight_scale"},                             // Model Optimizer
    {.format = kMxfp4, .scales = ".weight_scale"},                             // Quark
    {.format = kMxfp4, .codes = ".weight_packed", .scales = ".weight_scale"},  // compressed-tensors
    {.format = kMxfp4, .scales = ".scale"},                                    // DeepSeek V4
    {.format = kNvfp4, .scales = ".weight_scale", .row_scale = ".weight_scale_2"},
    {.format = kNvfp4,
     .codes = ".weight_packed",
     .scales = ".weight_scale",
     .row_scale = ".weight_global_scale",
     .reciprocal = true},  // compressed-tensors
};
// Suffixes of activation scales. Sluice does not use them, because it keeps activations in bf16.
constexpr std::string_view kOfActivations[] = {".input_scale", ".input_global_scale", ".qscale_act"};

std::string_view stem_of(std::string_view name) {
  return name.ends_with(kWeight) ? name.substr(0, name.size() - kWeight.size()) : std::string_view();
}
std::string beside(std::string_view stem, std::string_view suffix) {
  return std::string(stem) + std::string(suffix);
}
const CheckpointTensor* there(const Checkpoint& files, std::string_view stem, std::string_view suffix) {
  return suffix.empty() ? nullptr : files.find_if_there(beside(stem, suffix));
}

using Types = std::vector<StoredType>;
using Shapes = std::vector<std::vector<int64_t>>;

// Shapes of one scale per row, or one per matrix.
Shapes shapes_of_row_scale(WeightFormat f, int64_t rows) {
  if (f.scales == WeightScales::kNv) return {{}, {1}};
  return {{rows, 1}, {rows}, {}, {1}};
}

bool is_one_of(const auto& list, const auto& value) { return std::ranges::find(list, value) != list.end(); }

Status wrong(const CheckpointTensor& t, StoredType type, const std::vector<int64_t>& shape, Code code) {
  return {code,
          place_of(t) + ": wanted " + stored_text(type, shape) + ", found " + stored_text(t.type, t.shape)};
}

Result<const CheckpointTensor*> find(const Checkpoint& files, const std::string& name,
                                     std::string_view place) {
  auto found = files.find(name);
  if (found.ok() || place.empty()) return found;
  return Status{found.status().code, std::string(place) + ": " + found.status().message};
}

Result<const CheckpointTensor*> find(const Checkpoint& files, const std::string& name, std::string_view place,
                                     const Types& types, const Shapes& shapes) {
  const auto found = find(files, name, place);
  if (!found.ok()) return found;
  const CheckpointTensor& t = *found.value();
  const bool known = is_one_of(types, t.type);
  if (known && is_one_of(shapes, t.shape)) return &t;
  return wrong(t, types[0], shapes[0], known ? Code::kCorrupt : Code::kUnsupported);
}

// The first form whose tensors all exist; otherwise the form whose scales have the suffix `scales`; otherwise
// a form whose codes exist; otherwise the most common form.
const StoredForm& form_of(const Checkpoint& files, std::string_view stem, WeightFormat format,
                          std::string_view scales) {
  const std::span<const StoredForm> forms = stored_forms(format);
  const auto whole = [&](const StoredForm& f) {
    const auto has = [&](std::string_view suffix) { return suffix.empty() || there(files, stem, suffix); };
    return has(f.codes) && has(f.scales) && has(f.row_scale);
  };
  if (const auto at = std::ranges::find_if(forms, whole); at != forms.end()) return *at;
  if (const auto at = std::ranges::find(forms, scales, &StoredForm::scales); at != forms.end()) return *at;
  const auto codes = [&](const StoredForm& f) { return there(files, stem, f.codes) != nullptr; };
  const auto at = std::ranges::find_if(forms, codes);
  return at == forms.end() ? forms.front() : *at;
}

Result<const CheckpointTensor*> find_codes(const Checkpoint& files, const std::string& name, DType w,
                                           const MatrixPart& p) {
  if (w == DType::kE4M3) return find(files, name, p.place, {StoredType::kF8E4M3}, {{p.rows, p.width}});
  const CheckpointTensor* t = files.find_if_there(name);
  if (t && t->type == StoredType::kF4)
    return find(files, name, p.place, {StoredType::kF4}, {{p.rows, p.width}});
  return find(files, name, p.place, {StoredType::kI8, StoredType::kU8}, {{p.rows, p.width / 2}});
}

Result<RowSpan> find_numbers(const Checkpoint& files, const std::string& name, const MatrixPart& p) {
  const auto found = find(files, name, p.place);
  if (!found.ok()) return found.status();
  const CheckpointTensor& t = *found.value();
  const bool known = files.holds(t, StoredType::kBF16);
  const std::vector<int64_t> shape{p.rows, p.width};
  if (!known || t.shape != shape)
    return wrong(t, StoredType::kBF16, shape, known ? Code::kCorrupt : Code::kUnsupported);
  return RowSpan{.type = t.type,
                 .rows = p.count,
                 .w = t.data + number_bytes(t.type, p.first * p.width + p.column),
                 .stride = number_bytes(t.type, p.width),
                 .first_row = p.first,
                 .expert = p.expert,
                 .tensor = &t};
}

}  // namespace

std::vector<StoredType> types_of_scales(WeightScales scales) {
  switch (scales) {
    case WeightScales::kMx:
      return {StoredType::kF8E8M0, StoredType::kU8};
    case WeightScales::kNv:
      return {StoredType::kF8E4M3};
    default:
      return {StoredType::kF32, StoredType::kBF16, StoredType::kF8E8M0, StoredType::kU8};
  }
}

std::vector<int64_t> shape_of_scales(WeightFormat f, int64_t rows, int64_t width) {
  if (f.scales == WeightScales::kBlocks) return {f8_blocks(rows), f8_blocks(width)};
  return {rows, f.column_scales(width)};
}

void set_scales(const CheckpointTensor& scales, int64_t at, WeightFormat f, const MatrixPart& p, RowSpan* s) {
  s->scale_tensor = &scales;
  if (f.scales == WeightScales::kBlocks) {
    s->form = RowForm::kF8Blocks;
    s->scales = scales.data + at, s->scale_type = scales.type;
    s->scale_stride = f8_blocks(p.width) * bits_of(scales.type) / 8;
    s->first_column = p.column;
    return;
  }
  const int64_t of_row = f.column_scales(p.width);
  s->scale_stride = p.step * of_row;
  s->scales = scales.data + at + p.first * of_row + p.column / f.columns();
}

void set_row_scales(const CheckpointTensor& scale, int64_t at, bool one_for_all, const MatrixPart& p,
                    RowSpan* s) {
  const int64_t each = one_for_all ? 0 : bits_of(scale.type) / 8;
  s->row_scale_tensor = &scale;
  if (!s->scale_tensor) s->scale_tensor = &scale;
  s->row_scale_type = scale.type;
  s->row_scale_stride = p.step * each;
  s->row_scales = scale.data + at + p.first * each;
}

std::span<const StoredForm> stored_forms(WeightFormat format) {
  const auto first = std::ranges::find(kForms, format, &StoredForm::format);
  const auto end =
      std::find_if(first, std::end(kForms), [&](const StoredForm& f) { return f.format != format; });
  return {first, end};
}

std::optional<WeightFormat> stored_format(const Checkpoint& files, std::string_view name, int64_t rows,
                                          int64_t width) {
  const std::string_view stem = stem_of(name);
  const CheckpointTensor* codes = files.find_if_there(name);
  if (!codes && !stem.empty()) codes = there(files, stem, ".weight_packed");
  if (!codes) return {};
  if (files.holds(*codes, StoredType::kBF16)) return WeightFormat{};
  const bool fp4 =
      codes->type == StoredType::kI8 || codes->type == StoredType::kU8 || codes->type == StoredType::kF4;
  if ((!fp4 && codes->type != StoredType::kF8E4M3) || stem.empty()) return {};
  const CheckpointTensor* scales = nullptr;
  for (const StoredForm& form : kForms)
    for (const std::string_view suffix : {form.scales, form.row_scale})
      if (!scales) scales = there(files, stem, suffix);
  if (fp4 && !scales && codes->shape == std::vector<int64_t>{rows, width}) return {};  // integers, not codes
  if (fp4) return scales && scales->type == StoredType::kF8E4M3 ? kNvfp4 : kMxfp4;
  if (!scales || scales->shape == shape_of_scales(kFp8Blocks, rows, width)) return kFp8Blocks;
  const bool bytes = is_one_of(types_of_scales(WeightScales::kMx), scales->type);
  if (bytes && scales->shape == shape_of_scales(kMxfp8, rows, width)) return kMxfp8;
  return is_one_of(shapes_of_row_scale(kFp8Rows, rows), scales->shape) ? kFp8Rows : kFp8Blocks;
}

Result<RowSpan> find_matrix(const Checkpoint& files, const std::string& name, WeightFormat format,
                            const MatrixPart& p) {
  if (!format.scaled()) return find_numbers(files, name, p);
  const std::string_view stem = stem_of(name);
  const StoredForm& form = form_of(files, stem, format, p.scales);
  const auto codes = find_codes(files, beside(stem, form.codes), format.w, p);
  if (!codes.ok()) return codes.status();
  const CheckpointTensor& t = *codes.value();
  const int64_t stride = bytes_of(format.w, p.width);
  RowSpan out{.type = t.type,
              .rows = p.count,
              .w = t.data + p.first * stride + bytes_of(format.w, p.column),
              .stride = stride,
              .first_row = p.first,
              .expert = p.expert,
              .tensor = &t};
  if (!form.scales.empty()) {
    const auto scales = find(files, beside(stem, form.scales), p.place, types_of_scales(format.scales),
                             {shape_of_scales(format, p.rows, p.width)});
    if (!scales.ok()) return scales.status();
    set_scales(*scales.value(), 0, format, p, &out);
  }
  if (!form.row_scale.empty()) {
    const auto scale = find(files, beside(stem, form.row_scale), p.place,
                            {StoredType::kF32, StoredType::kBF16}, shapes_of_row_scale(format, p.rows));
    if (!scale.ok()) return scale.status();
    const CheckpointTensor& found = *scale.value();
    set_row_scales(found, 0, found.bytes == bits_of(found.type) / 8, p, &out);
    out.reciprocal = form.reciprocal;
  }
  if (can_read(out, format)) return out;
  return invalid(place_of(t) + ": wanted a part that begins at a multiple of " +
                 std::to_string(kScaleFeatures) + " rows and " + std::to_string(kScaleColumns) +
                 " columns (scales of blocks), found row " + std::to_string(p.first) + " and column " +
                 std::to_string(p.column));
}

std::vector<const CheckpointTensor*> tensors_of_matrix(const Checkpoint& files, std::string_view name) {
  std::vector<const CheckpointTensor*> out;
  const auto add = [&](const CheckpointTensor* t) {
    if (t && !is_one_of(out, t)) out.push_back(t);
  };
  add(files.find_if_there(name));
  const std::string_view stem = stem_of(name);
  if (stem.empty()) return out;
  for (const StoredForm& form : kForms)
    for (const std::string_view suffix : {form.codes, form.scales, form.row_scale})
      add(there(files, stem, suffix));
  for (const std::string_view suffix : kOfActivations) add(there(files, stem, suffix));
  return out;
}

std::vector<StoredPart> stored_parts(std::string_view name, WeightFormat format, int64_t rows, int64_t width,
                                     std::string_view scales) {
  using What = StoredPart::What;
  if (!format.scaled()) return {{What::kCodes, std::string(name), StoredType::kBF16, {rows, width}}};
  const std::span<const StoredForm> forms = stored_forms(format);
  const auto named = std::ranges::find(forms, scales, &StoredForm::scales);
  const StoredForm& form = named == forms.end() || scales.empty() ? forms.front() : *named;
  const std::string_view stem = stem_of(name);
  // DeepSeek V4 stores codes as I8 and scales as F8_E8M0; all other forms store codes and e8m0 scales as U8.
  const bool v4 = form.scales == ".scale";
  std::vector<StoredPart> out;
  if (format.w == DType::kE4M3) {
    out.push_back({What::kCodes, beside(stem, form.codes), StoredType::kF8E4M3, {rows, width}});
  } else {
    out.push_back(
        {What::kCodes, beside(stem, form.codes), v4 ? StoredType::kI8 : StoredType::kU8, {rows, width / 2}});
  }
  if (!form.scales.empty()) {
    const StoredType type = v4                                   ? StoredType::kF8E8M0
                            : format.scales == WeightScales::kMx ? StoredType::kU8
                                                                 : types_of_scales(format.scales)[0];
    out.push_back({What::kScales, beside(stem, form.scales), type, shape_of_scales(format, rows, width)});
  }
  if (!form.row_scale.empty())
    out.push_back({What::kRowScale, beside(stem, form.row_scale), StoredType::kF32,
                   shapes_of_row_scale(format, rows)[0]});
  return out;
}

}  // namespace sluice
