#include "weights/panels.h"

#include <cstring>
#include <string>

#include "ops/bounds.h"
#include "ops/op.h"

namespace sluice {
namespace {

PanelShape shape_of(const PanelMatrix& m) { return panel_shape(m.features, m.gated, m.width); }

Status check(const PanelMatrix& m, const RowMajorWeights& rows, const PanelWeights& panels) {
  const bool fp4 = m.w == DType::kE2M1;
  Refusal r;
  need_between(r, "features", m.features, 1, int64_t{1} << 20);
  need_between(r, "width", m.width, 1, int64_t{1} << 20);
  r.need(fp4 || m.w == DType::kBF16, "w in bf16 or e2m1", std::string("w=") + text(m.w));
  r.need(!fp4 || m.width % kMxBlock == 0, "width % 32 == 0 (one scale for 32 codes)", "width", m.width);
  if (!r.accepted()) return invalid("panels16: " + r.line());
  const int64_t weight_rows = m.gated ? 2 * m.features : m.features;
  const PanelShape shape = shape_of(m);
  SLUICE_TRY(check_slot(slot("w", Role::kIn, m.w, {weight_rows, m.width}), rows.w, Backend::kCpu, 1));
  SLUICE_TRY(check_slot(slot("scales", Role::kIn, DType::kU8, {weight_rows, m.width / kMxBlock}, fp4),
                        rows.scales, Backend::kCpu, 1));
  SLUICE_TRY(check_slot(slot("panels of w", Role::kIn, DType::kU8, {shape.code_bytes(fp4)}), panels.w,
                        Backend::kCpu, fp4 ? 1 : 2));
  return check_slot(slot("panels of scales", Role::kIn, DType::kU8, {shape.scale_bytes()}, fp4),
                    panels.scales, Backend::kCpu, 1);
}

// Calls f(checkpoint row, where it lies in panels) for every row.
template <class F>
void for_each_row(const PanelMatrix& m, F f) {
  for (int64_t i = 0; i < m.features; ++i) {
    f(m.gated ? gated_row(m.gate_order, m.features, i, false) : i, panel_row(m.gated, i, false));
    if (m.gated) f(gated_row(m.gate_order, m.features, i, true), panel_row(true, i, true));
  }
}

// Four bytes of a checkpoint, codes k .. k + 7, as one lane's word of a panel: low nibbles in the low half.
uint32_t spread(const uint8_t* bytes) {
  uint32_t word = 0;
  for (int j = 0; j < 4; ++j) word |= (bytes[j] & 15u) << (4 * j) | uint32_t{bytes[j]} >> 4 << (16 + 4 * j);
  return word;
}
void gather(uint32_t word, uint8_t* bytes) {
  for (int j = 0; j < 4; ++j)
    bytes[j] = static_cast<uint8_t>((word >> (4 * j) & 15u) | (word >> (16 + 4 * j) & 15u) << 4);
}
// Words are stored byte by byte, so that a panel is the same bytes on any machine.
void store_word(uint32_t word, uint8_t* to) {
  for (int i = 0; i < 4; ++i) to[i] = static_cast<uint8_t>(word >> (8 * i));
}
uint32_t load_word(const uint8_t* from) {
  return from[0] | uint32_t{from[1]} << 8 | uint32_t{from[2]} << 16 | uint32_t{from[3]} << 24;
}

}  // namespace

Status pack_panels16(const PanelMatrix& m, const RowMajorWeights& from, const PanelWeights& to) {
  SLUICE_TRY(check(m, from, to));
  const PanelShape shape = shape_of(m);
  const bool fp4 = m.w == DType::kE2M1;
  std::memset(to.w.data, 0, static_cast<size_t>(shape.code_bytes(fp4)));
  if (fp4) std::memset(to.scales.data, 127, static_cast<size_t>(shape.scale_bytes()));
  for_each_row(m, [&](int64_t row, PanelRow at) {
    if (!fp4) {
      const BF16* w = from.w.as<const BF16>() + row * m.width;
      for (int64_t k = 0; k < m.width; ++k) to.w.as<BF16>()[panel_bf16_index(shape, at, k)] = w[k];
      return;
    }
    const uint8_t* codes = from.w.as<const uint8_t>() + row * m.width / 2;
    for (int64_t k = 0; k < m.width; k += 8)
      store_word(spread(codes + k / 2), to.w.as<uint8_t>() + panel_mxfp4_nibble(shape, at, k).byte);
    const uint8_t* scales = from.scales.as<const uint8_t>() + row * m.width / kMxBlock;
    for (int64_t k = 0; k < m.width; k += kMxBlock)
      to.scales.as<uint8_t>()[panel_scale_index(shape, at, k)] = scales[k / kMxBlock];
  });
  return {};
}

Status unpack_panels16(const PanelMatrix& m, const PanelWeights& from, const RowMajorWeights& to) {
  SLUICE_TRY(check(m, to, from));
  const PanelShape shape = shape_of(m);
  for_each_row(m, [&](int64_t row, PanelRow at) {
    if (m.w == DType::kBF16) {
      BF16* w = to.w.as<BF16>() + row * m.width;
      for (int64_t k = 0; k < m.width; ++k) w[k] = from.w.as<const BF16>()[panel_bf16_index(shape, at, k)];
      return;
    }
    uint8_t* codes = to.w.as<uint8_t>() + row * m.width / 2;
    for (int64_t k = 0; k < m.width; k += 8)
      gather(load_word(from.w.as<const uint8_t>() + panel_mxfp4_nibble(shape, at, k).byte), codes + k / 2);
    uint8_t* scales = to.scales.as<uint8_t>() + row * m.width / kMxBlock;
    for (int64_t k = 0; k < m.width; k += kMxBlock)
      scales[k / kMxBlock] = from.scales.as<const uint8_t>()[panel_scale_index(shape, at, k)];
  });
  return {};
}

}  // namespace sluice
