#include <algorithm>

#include "ops/pack_experts.h"

namespace sluice {
namespace {

// The bytes of one row of one expert.
const uint8_t* row_at(const PackExperts::Problem& p, const Tensor& t, int64_t expert, int64_t row,
                      int64_t bytes) {
  return t.as<const uint8_t>() + (expert * PackExperts::weight_rows(p) + row) * bytes;
}

uint8_t top_of_row(const uint8_t* scales, int64_t blocks) {
  uint8_t top = 0;
  for (int64_t b = 0; b < blocks; ++b)
    if (scales[b] != 255) top = std::max(top, scales[b]);
  return top;
}

Expectations pack(const PackExperts::Problem& p, const PackExperts::Args& a) {
  const FragmentShape s = PackExperts::shape(p);
  const bool fp4 = p.w == DType::kE2M1;
  const int64_t expert_bytes = s.code_bytes(fp4), expert_scales = fp4 ? s.scale_bytes() : 0;
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
      for (int64_t k = 0; !fp4 && k < p.width; ++k)
        std::copy_n(from + 2 * k, 2, to + 2 * fragment_bf16_index(s, at, k));
      if (!fp4) continue;
      const uint8_t* from_scales = row_at(p, a.row_scales, e, row, PackExperts::row_scale_bytes(p));
      const uint8_t top = top_of_row(from_scales, PackExperts::row_scale_bytes(p));
      to_scales[fragment_top_index(s, at)] = top;
      for (int64_t k = 0; k < p.width; ++k) {
        const uint8_t scale = from_scales[k / kMxBlock];
        to_scales[fragment_scale_index(s, at, k)] = fragment_stored_scale(scale, top);
        const uint32_t code = scale == 255 ? 0 : from[k / 2] >> (k % 2 * 4) & 15u;
        const FragmentCode c = fragment_code(s, at, k);
        const uint32_t bits = fragment_pair_of(c.half ? 0 : code, c.half ? code : 0);
        uint32_t* word = reinterpret_cast<uint32_t*>(to) + c.word;
        *word ^= fragment_word(bits, c.pair);
      }
    }
  }
  Expectations out{{.slot = "packed", .value = {bytes.begin(), bytes.end()}, .bound = {}}};
  if (fp4) out.push_back({.slot = "packed_scales", .value = {scales.begin(), scales.end()}, .bound = {}});
  return out;
}

Expectations unpack(const PackExperts::Problem& p, const PackExperts::Args& a) {
  const FragmentShape s = PackExperts::shape(p);
  const bool fp4 = p.w == DType::kE2M1;
  const int64_t row_bytes = PackExperts::row_bytes(p), blocks = PackExperts::row_scale_bytes(p);
  const int64_t rows = p.experts * PackExperts::weight_rows(p);
  std::vector<uint8_t> bytes(static_cast<size_t>(rows * row_bytes));
  std::vector<uint8_t> scales(static_cast<size_t>(rows * blocks));
  for (int64_t e = 0; e < p.experts; ++e) {
    const uint8_t* from = a.packed.as<const uint8_t>() + e * s.code_bytes(fp4);
    const uint8_t* from_scales = fp4 ? a.packed_scales.as<const uint8_t>() + e * s.scale_bytes() : nullptr;
    for (int64_t i = 0; i < s.row_blocks * kFragmentRows; ++i) {
      const FragmentRow at{i / kFragmentRows, i % kFragmentRows};
      const int64_t row = PackExperts::source_row(p, at);
      if (row < 0) continue;
      const int64_t flat = e * PackExperts::weight_rows(p) + row;
      uint8_t* to = bytes.data() + flat * row_bytes;
      for (int64_t k = 0; !fp4 && k < p.width; ++k)
        std::copy_n(from + 2 * fragment_bf16_index(s, at, k), 2, to + 2 * k);
      for (int64_t k = 0; fp4 && k < p.width; ++k) {
        const FragmentCode c = fragment_code(s, at, k);
        const uint32_t word = reinterpret_cast<const uint32_t*>(from)[c.word];
        const uint32_t code = fragment_code_of(fragment_pair(word, c.pair), c.half);
        to[k / 2] = static_cast<uint8_t>(to[k / 2] | code << (k % 2 * 4));
        const uint8_t stored = from_scales[fragment_scale_index(s, at, k)];
        const int scale = fragment_scale(stored, from_scales[fragment_top_index(s, at)]);
        scales[static_cast<size_t>(flat * blocks + k / kMxBlock)] =
            static_cast<uint8_t>(stored == kFragmentNan ? 255 : scale);
      }
    }
  }
  Expectations out{{.slot = "rows", .value = {bytes.begin(), bytes.end()}, .bound = {}}};
  if (fp4) out.push_back({.slot = "row_scales", .value = {scales.begin(), scales.end()}, .bound = {}});
  return out;
}

}  // namespace

Expectations reference(const PackExperts::Problem& p, const PackExperts::Args& a) {
  return p.unpack ? unpack(p, a) : pack(p, a);
}

}  // namespace sluice
