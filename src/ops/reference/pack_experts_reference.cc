#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/pack_experts.h"

namespace sluice {
namespace {

// The bytes of one row of one expert.
const uint8_t* row_at(const PackExperts::Problem& p, const Tensor& t, int64_t expert, int64_t row,
                      int64_t bytes) {
  return t.as<const uint8_t>() + (expert * PackExperts::weight_rows(p) + row) * bytes;
}

// One row after packing: its codes by column, its scales, and whether its sums are NaN.
struct PackedRow {
  std::vector<uint8_t> codes;
  std::vector<uint8_t> scales;  // as in the row, with bytes of 255 or 0x7F for groups that are NaN
  bool nan = false;
};

bool is_nan(DType w, uint8_t code) { return w == DType::kE4M3 && (code & 0x7F) == 0x7F; }

PackedRow packed_row(const PackExperts::Problem& p, const uint8_t* codes, const uint8_t* scales) {
  const WeightFormat f = PackExperts::format(p);
  PackedRow row;
  for (int64_t k = 0; k < p.width; ++k)
    row.codes.push_back(p.w == DType::kE2M1 ? codes[k / 2] >> (k % 2 * 4) & 15 : codes[k]);
  row.scales.assign(scales, scales + f.row_scale_bytes(p.width));
  for (int64_t k = 0; k < p.width; ++k) {
    const bool nan = is_nan(p.w, row.codes[static_cast<size_t>(k)]);
    if (f.scales == WeightScales::kMx) {
      if (nan) row.scales[static_cast<size_t>(k / kMxBlock)] = 255;
    } else {
      row.nan |= nan;
    }
  }
  for (int64_t k = 0; k < p.width; ++k) {
    if (f.scales == WeightScales::kMx && row.scales[static_cast<size_t>(k / kMxBlock)] == 255)
      row.codes[static_cast<size_t>(k)] = 0;
    if (f.scales != WeightScales::kNv) continue;
    uint8_t& scale = row.scales[static_cast<size_t>(k / kNvBlock)];
    if (scale > 0x7F) scale = 0x7F;
    if (scale == 0 || scale == 0x7F) row.codes[static_cast<size_t>(k)] = 0;
  }
  return row;
}

void put(uint8_t* to, float value) { std::memcpy(to, &value, sizeof value); }

// Packs the scales of the row stored at `at`; for blocks, only its factor.
void pack_scales(const PackExperts::Problem& p, FragmentRow at, const PackedRow& row, uint8_t* to) {
  const WeightFormat f = PackExperts::format(p);
  const FragmentShape s = PackExperts::shape(p);
  if (f.scales == WeightScales::kMx) {
    uint8_t top = 0;
    for (uint8_t scale : row.scales)
      if (scale != 255) top = std::max(top, scale);
    to[fragment_top_index(s, at)] = top;
    for (int64_t k = 0; k < p.width; k += kMxBlock)
      to[fragment_scale_index(s, at, k)] =
          fragment_stored_scale(row.scales[static_cast<size_t>(k / kMxBlock)], top);
    return;
  }
  float factor = 1;
  if (f.scales == WeightScales::kRows) factor = load_f32_bytes(row.scales.data());
  if (f.scales == WeightScales::kNv) {
    factor = 128 * load_f32_bytes(row.scales.data() + p.width / kNvBlock);
    for (int64_t k = 0; k < p.width; k += kNvBlock)
      to[fragment_nv_index(s, at, k)] = fragment_nv_stored(row.scales[static_cast<size_t>(k / kNvBlock)]);
  }
  const bool nan = row.nan || (f.scales == WeightScales::kNv && std::isnan(factor));
  put(to + fragment_factor_index(s, f, at), nan ? std::numeric_limits<float>::quiet_NaN() : factor);
}

// blocks: packs the scales of the row stored at `at`.
void pack_block_scales(const PackExperts::Problem& p, FragmentRow at, const PackedRow& row, uint8_t* to) {
  const FragmentShape s = PackExperts::shape(p);
  float before = 0;
  for (int64_t k = 0; k < p.width; k += kScaleColumns) {
    float scale = load_f32_bytes(row.scales.data() + 4 * (k / kScaleColumns));
    if (!is_block_scale(scale)) scale = 1;
    const int64_t index = fragment_block_scale_index(s, at, k);
    put(to + 4 * index, scale);
    put(to + 4 * (index + 4), k == 0 ? 1 : before / scale);
    before = scale;
  }
}
bool has_bad_scale(const PackExperts::Problem& p, const PackedRow& row) {
  for (int64_t k = 0; k < p.width; k += kScaleColumns)
    if (!is_block_scale(load_f32_bytes(row.scales.data() + 4 * (k / kScaleColumns)))) return true;
  return false;
}

void pack_codes(const PackExperts::Problem& p, FragmentRow at, const PackedRow& row, uint8_t* to) {
  const FragmentShape s = PackExperts::shape(p);
  for (int64_t k = 0; k < p.width; ++k) {
    const uint32_t code = row.codes[static_cast<size_t>(k)];
    if (p.w == DType::kE4M3) {
      to[fragment_code8_index(s, at, k)] = static_cast<uint8_t>(code);
      continue;
    }
    const FragmentCode c = fragment_code(s, at, k);
    const uint32_t low = c.half ? 0 : code, high = c.half ? code : 0;
    uint32_t word;
    std::memcpy(&word, to + 4 * c.word, sizeof word);
    word ^= fragment_word(fragment_pair_of(low, high), c.pair);
    std::memcpy(to + 4 * c.word, &word, sizeof word);
  }
}

Expectations pack(const PackExperts::Problem& p, const PackExperts::Args& a) {
  const FragmentShape s = PackExperts::shape(p);
  const WeightFormat f = PackExperts::format(p);
  const int64_t expert_bytes = s.code_bytes(f), expert_scales = s.scale_bytes(f);
  std::vector<uint8_t> bytes(static_cast<size_t>(p.experts * expert_bytes));
  std::vector<uint8_t> scales(static_cast<size_t>(p.experts * expert_scales));
  for (int64_t e = 0; e < p.experts; ++e) {
    uint8_t* to = bytes.data() + e * expert_bytes;
    uint8_t* to_scales = scales.data() + e * expert_scales;
    for (int64_t i = 0; i < s.row_blocks * kFragmentRows; ++i) {
      const FragmentRow at{i / kFragmentRows, i % kFragmentRows};
      const int64_t row = PackExperts::source_row(p, at);
      if (row < 0) continue;
      const uint8_t* from = row_at(p, a.rows, e, row, PackExperts::row_bytes(p));
      for (int64_t k = 0; !f.scaled() && k < p.width; ++k)
        std::copy_n(from + 2 * k, 2, to + 2 * fragment_bf16_index(s, at, k));
      if (!f.scaled()) continue;
      PackedRow one = packed_row(p, from, row_at(p, a.row_scales, e, row, PackExperts::row_scale_bytes(p)));
      if (f.scales == WeightScales::kBlocks) {
        one.nan |= has_bad_scale(p, one);
        // The rows of 32 features have the same scales, so all of these rows write the same values.
        pack_block_scales(p, at, one, to_scales);
        if (p.gated) pack_block_scales(p, {at.block, (at.row + 32) % kFragmentRows}, one, to_scales);
      }
      pack_scales(p, at, one, to_scales);
      pack_codes(p, at, one, to);
    }
  }
  Expectations out{{.slot = "packed", .value = {bytes.begin(), bytes.end()}, .bound = {}}};
  if (f.scaled())
    out.push_back({.slot = "packed_scales", .value = {scales.begin(), scales.end()}, .bound = {}});
  return out;
}

// Unpacks the scales of the row stored at `at`.
void unpack_scales(const PackExperts::Problem& p, FragmentRow at, const uint8_t* from, uint8_t* to) {
  const WeightFormat f = PackExperts::format(p);
  const FragmentShape s = PackExperts::shape(p);
  for (int64_t k = 0; f.columns() > 0 && k < p.width; k += f.columns()) {
    const int64_t group = k / f.columns();
    if (f.scales == WeightScales::kMx) {
      const uint8_t stored = from[fragment_scale_index(s, at, k)];
      const int scale = fragment_scale(stored, from[fragment_top_index(s, at)]);
      to[group] = static_cast<uint8_t>(stored == kFragmentNan ? 255 : scale);
    } else if (f.scales == WeightScales::kNv) {
      to[group] = fragment_nv_scale(from[fragment_nv_index(s, at, k)]);
    } else {
      std::memcpy(to + 4 * group, from + 4 * fragment_block_scale_index(s, at, k), 4);
    }
  }
  if (!f.has_row_scale()) return;
  const float factor = load_f32_bytes(from + fragment_factor_index(s, f, at));
  const bool nv = f.scales == WeightScales::kNv;
  put(to + f.column_scales(p.width), !nv                  ? factor
                                     : std::isnan(factor) ? std::numeric_limits<float>::quiet_NaN()
                                                          : factor / 128);
}

Expectations unpack(const PackExperts::Problem& p, const PackExperts::Args& a) {
  const FragmentShape s = PackExperts::shape(p);
  const WeightFormat f = PackExperts::format(p);
  const int64_t row_bytes = PackExperts::row_bytes(p), scale_bytes = PackExperts::row_scale_bytes(p);
  const int64_t rows = p.experts * PackExperts::weight_rows(p);
  std::vector<uint8_t> bytes(static_cast<size_t>(rows * row_bytes));
  std::vector<uint8_t> scales(static_cast<size_t>(rows * scale_bytes));
  for (int64_t e = 0; e < p.experts; ++e) {
    const uint8_t* from = a.packed.as<const uint8_t>() + e * s.code_bytes(f);
    const uint8_t* from_scales =
        f.scaled() ? a.packed_scales.as<const uint8_t>() + e * s.scale_bytes(f) : nullptr;
    for (int64_t i = 0; i < s.row_blocks * kFragmentRows; ++i) {
      const FragmentRow at{i / kFragmentRows, i % kFragmentRows};
      const int64_t row = PackExperts::source_row(p, at);
      if (row < 0) continue;
      const int64_t flat = e * PackExperts::weight_rows(p) + row;
      uint8_t* to = bytes.data() + flat * row_bytes;
      for (int64_t k = 0; !f.scaled() && k < p.width; ++k)
        std::copy_n(from + 2 * fragment_bf16_index(s, at, k), 2, to + 2 * k);
      for (int64_t k = 0; f.scaled() && k < p.width; ++k) {
        if (p.w == DType::kE4M3) {
          to[k] = from[fragment_code8_index(s, at, k)];
          continue;
        }
        const FragmentCode c = fragment_code(s, at, k);
        uint32_t word;
        std::memcpy(&word, from + 4 * c.word, sizeof word);
        to[k / 2] = static_cast<uint8_t>(to[k / 2] | fragment_code_of(fragment_pair(word, c.pair), c.half)
                                                         << (k % 2 * 4));
      }
      if (f.scaled()) unpack_scales(p, at, from_scales, scales.data() + flat * scale_bytes);
    }
  }
  Expectations out{{.slot = "rows", .value = {bytes.begin(), bytes.end()}, .bound = {}}};
  if (f.scaled()) out.push_back({.slot = "row_scales", .value = {scales.begin(), scales.end()}, .bound = {}});
  return out;
}

}  // namespace

Expectations reference(const PackExperts::Problem& p, const PackExperts::Args& a) {
  return p.unpack ? unpack(p, a) : pack(p, a);
}

}  // namespace sluice
