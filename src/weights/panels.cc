#include "weights/panels.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <memory>
#include <string>

#include "ops/bounds.h"
#include "ops/op.h"
#include "weights/panel_codec.h"
#include "weights/parallel.h"

namespace sluice {
namespace {

PanelShape shape_of(const PanelMatrix& m) { return panel_shape(m.features, m.gated, m.width); }
bool is_fp4(const PanelMatrix& m) { return m.w == DType::kE2M1; }
int64_t row_bytes(const PanelMatrix& m) { return bytes_of(m.w, m.width); }
int64_t blocks_of(const PanelMatrix& m) { return is_fp4(m) ? m.width / kMxBlock : 0; }

Status check_matrix(const PanelMatrix& m) {
  Refusal r;
  need_between(r, "features", m.features, 1, int64_t{1} << 20);
  need_between(r, "width", m.width, 1, int64_t{1} << 20);
  r.need(is_fp4(m) || m.w == DType::kBF16, "w in bf16 or e2m1", std::string("w=") + text(m.w));
  r.need(!is_fp4(m) || m.width % kMxBlock == 0, "width % 32 == 0 (one scale for 32 codes)", "width", m.width);
  return r.accepted() ? Status{} : invalid("panels16: " + r.line());
}

Status check_panels(const PanelMatrix& m, const PanelWeights& panels) {
  const PanelShape shape = shape_of(m);
  SLUICE_TRY(check_slot(slot("panels of w", Role::kIn, DType::kU8, {shape.code_bytes(is_fp4(m))}), panels.w,
                        Backend::kCpu, is_fp4(m) ? 1 : 2));
  return check_slot(slot("panels of scales", Role::kIn, DType::kU8, {shape.scale_bytes()}, is_fp4(m)),
                    panels.scales, Backend::kCpu, 1);
}

Status check(const PanelMatrix& m, const RowMajorWeights& rows, const PanelWeights& panels) {
  SLUICE_TRY(check_matrix(m));
  const int64_t weight_rows = m.gated ? 2 * m.features : m.features;
  SLUICE_TRY(check_slot(slot("w", Role::kIn, m.w, {weight_rows, m.width}), rows.w, Backend::kCpu, 1));
  SLUICE_TRY(check_slot(slot("scales", Role::kIn, DType::kU8, {weight_rows, m.width / kMxBlock}, is_fp4(m)),
                        rows.scales, Backend::kCpu, 1));
  return check_panels(m, panels);
}

Status check_spans(const PanelMatrix& m, const std::vector<RowSpan>& spans, const char* what,
                   int64_t wanted) {
  int64_t rows = 0;
  for (const RowSpan& s : spans) {
    const bool fits =
        is_fp4(m) ? s.form == RowForm::kRows && s.scales : s.form != RowForm::kF8Blocks || s.scales;
    if (!s.w || !fits || s.rows < 0)
      return invalid(std::string("panels16: ") + what + ": wanted spans of " + text(m.w) +
                     ", found another storage");
    rows += s.rows;
  }
  if (rows == wanted) return {};
  return invalid(std::string("panels16: ") + what + ": wanted " + std::to_string(wanted) + " rows, found " +
                 std::to_string(rows));
}

Status check(const PanelMatrix& m, const PanelSource& from) {
  SLUICE_TRY(check_matrix(m));
  SLUICE_TRY(check_spans(m, from.rows, m.gated ? "gates" : "rows", m.features));
  return check_spans(m, from.ups, "ups", m.gated ? m.features : 0);
}

// The rows of panel `panel`: which spans, and which of their rows.
struct PanelRowRef {
  const RowSpan* span = nullptr;  // null: padding
  int64_t row = 0;
};
using PanelRefs = std::array<PanelRowRef, kPanelRows>;
PanelRefs rows_of(const PanelMatrix& m, const PanelSource& from, int64_t panel) {
  const auto& spans = m.gated && panel % 2 ? from.ups : from.rows;
  const int64_t first = (m.gated ? panel / 2 : panel) * kPanelRows;
  PanelRefs out;
  int64_t begin = 0;
  for (const RowSpan& s : spans) {
    for (int64_t r = std::max(first, begin); r < std::min(first + kPanelRows, begin + s.rows); ++r)
      out[static_cast<size_t>(r - first)] = {&s, r - begin};
    begin += s.rows;
  }
  return out;
}

// Lanes that hold a feature, not padding.
int64_t lanes_used(const PanelMatrix& m, int64_t panel) {
  return std::min(kPanelRows, m.features - (m.gated ? panel / 2 : panel) * kPanelRows);
}

uint64_t hash_rows(const PanelMatrix& m, const PanelLanes& codes, const PanelLanes& scales, int64_t lanes) {
  XXH3_state_t state;
  XXH3_INITSTATE(&state);
  XXH3_64bits_reset(&state);
  for (size_t lane = 0; lane < static_cast<size_t>(lanes); ++lane) {
    XXH3_64bits_update(&state, codes[lane], static_cast<size_t>(row_bytes(m)));
    if (is_fp4(m)) XXH3_64bits_update(&state, scales[lane], static_cast<size_t>(blocks_of(m)));
  }
  return XXH3_64bits_digest(&state);
}

// The first place, in the order of panels and lanes, where something is wrong; threads agree on the least.
class FirstFault {
 public:
  void report(int64_t place) {
    int64_t least = place_.load();
    while (place < least && !place_.compare_exchange_weak(least, place)) {
    }
  }
  bool any() const { return place() != kNone; }
  int64_t place() const { return place_.load(); }
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

 private:
  std::atomic<int64_t> place_{kNone};
};

// Block of the first scale of 255 in a row, or -1.
int64_t nan_block(const PanelMatrix& m, const RowSpan& span, int64_t row) {
  const std::byte* scales = scales_of_row(span, row);
  const void* at = std::memchr(scales, 255, static_cast<size_t>(blocks_of(m)));
  return at ? static_cast<const std::byte*>(at) - scales : -1;
}

Status nan_scale(const PanelMatrix& m, const PanelSource& from, int64_t place) {
  const PanelRowRef at = rows_of(m, from, place / kPanelRows)[static_cast<size_t>(place % kPanelRows)];
  return {Code::kCorrupt, place_of_row(*at.span, at.span->scale_tensor, at.row) + ", block " +
                              std::to_string(nan_block(m, *at.span, at.row)) +
                              ": wanted a scale of 0 to 254, found 255 (NaN)"};
}

// Panels that one work item handles: enough to pay for taking it.
constexpr int64_t kPanelsAtOnce = 8;

// Calls f(panel, stage) for every panel on several threads; stage holds 16 bf16 rows.
template <class F>
void for_each_panel(const PanelMatrix& m, int threads, F f) {
  const int64_t panels = shape_of(m).panels, items = (panels + kPanelsAtOnce - 1) / kPanelsAtOnce;
  parallel_for(threads, items, [&](int64_t item) {
    const auto stage =
        std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(kPanelRows * 2 * m.width));
    for (int64_t p = item * kPanelsAtOnce; p < std::min(panels, (item + 1) * kPanelsAtOnce); ++p)
      f(p, stage.get());
  });
}

uint64_t combine(const std::vector<uint64_t>& hashes) {
  return XXH3_64bits(hashes.data(), hashes.size() * sizeof(uint64_t));
}

struct PanelPlaces {
  std::byte *w, *scales;
};
PanelPlaces places_of(const PanelMatrix& m, const PanelWeights& panels, int64_t panel) {
  const PanelShape shape = shape_of(m);
  const int64_t w = shape.code_bytes(is_fp4(m)) / shape.panels, scales = shape.scale_bytes() / shape.panels;
  return {panels.w.as<std::byte>() + panel * w,
          is_fp4(m) ? panels.scales.as<std::byte>() + panel * scales : nullptr};
}

// One tensor in a checkpoint's order as spans.
PanelSource spans_of(const PanelMatrix& m, const RowMajorWeights& rows) {
  const auto span = [&](int64_t first, int64_t step) {
    RowSpan s{.rows = m.features,
              .w = rows.w.as<const std::byte>() + first * row_bytes(m),
              .stride = step * row_bytes(m)};
    if (is_fp4(m))
      s.scales = rows.scales.as<const std::byte>() + first * blocks_of(m),
      s.scale_stride = step * blocks_of(m);
    return s;
  };
  if (!m.gated) return {{span(0, 1)}, {}};
  const int64_t step = m.gate_order == GateOrder::kInterleaved ? 2 : 1;
  return {{span(gated_row(m.gate_order, m.features, 0, false), step)},
          {span(gated_row(m.gate_order, m.features, 0, true), step)}};
}

}  // namespace

Result<uint64_t> pack_rows(const PanelMatrix& m, const PanelSource& from, const PanelWeights& to,
                           const PackOptions& options) {
  SLUICE_TRY(check(m, from));
  SLUICE_TRY(check_panels(m, to));
  std::vector<uint64_t> hashes(static_cast<size_t>(shape_of(m).panels));
  FirstFault fault;
  for_each_panel(m, options.threads, [&](int64_t panel, std::byte* stage) {
    if (fault.any()) return;
    const PanelRefs refs = rows_of(m, from, panel);
    PanelLanes codes{}, scales{};
    for (size_t lane = 0; lane < refs.size(); ++lane) {
      const auto& [span, row] = refs[lane];
      if (!span) continue;
      codes[lane] = read_row(*span, row, m.width, stage + static_cast<int64_t>(lane) * 2 * m.width);
      if (is_fp4(m)) scales[lane] = scales_of_row(*span, row);
      if (is_fp4(m) && options.nan_scales == NanScales::kRefuse && nan_block(m, *span, row) >= 0)
        return fault.report(panel * kPanelRows + static_cast<int64_t>(lane));
    }
    // Hashing first brings the rows in, in order; packing then finds them in the cache.
    hashes[static_cast<size_t>(panel)] = hash_rows(m, codes, scales, lanes_used(m, panel));
    const PanelPlaces out = places_of(m, to, panel);
    if (!is_fp4(m)) return pack_panel_bf16(codes, m.width, out.w);
    pack_panel_codes(codes, m.width, out.w);
    pack_panel_scales(scales, blocks_of(m), out.scales);
  });
  if (fault.any()) return nan_scale(m, from, fault.place());
  return combine(hashes);
}

Status check_scales(const PanelMatrix& m, const PanelSource& from) {
  SLUICE_TRY(check(m, from));
  if (!is_fp4(m)) return {};
  for (int64_t panel = 0; panel < shape_of(m).panels; ++panel) {
    const PanelRefs refs = rows_of(m, from, panel);
    for (size_t lane = 0; lane < refs.size(); ++lane)
      if (refs[lane].span && nan_block(m, *refs[lane].span, refs[lane].row) >= 0)
        return nan_scale(m, from, panel * kPanelRows + static_cast<int64_t>(lane));
  }
  return {};
}

Result<uint64_t> fingerprint(const PanelMatrix& m, const PanelWeights& panels, int threads) {
  SLUICE_TRY(check_matrix(m));
  SLUICE_TRY(check_panels(m, panels));
  std::vector<uint64_t> hashes(static_cast<size_t>(shape_of(m).panels));
  for_each_panel(m, threads, [&](int64_t panel, std::byte* stage) {
    // A stage row holds 2 * width bytes: codes and scales of e2m1 take less together.
    const int64_t lanes = lanes_used(m, panel);
    PanelLanesOut codes{}, scales{};
    PanelLanes codes_in{}, scales_in{};
    for (size_t lane = 0; lane < static_cast<size_t>(lanes); ++lane) {
      codes_in[lane] = codes[lane] = stage + static_cast<int64_t>(lane) * 2 * m.width;
      scales_in[lane] = scales[lane] = codes[lane] + row_bytes(m);
    }
    const PanelPlaces from = places_of(m, panels, panel);
    if (is_fp4(m)) {
      unpack_panel_codes(from.w, m.width, codes);
      unpack_panel_scales(from.scales, blocks_of(m), scales);
    } else {
      unpack_panel_bf16(from.w, m.width, codes);
    }
    hashes[static_cast<size_t>(panel)] = hash_rows(m, codes_in, scales_in, lanes);
  });
  return combine(hashes);
}

Status pack_panels16(const PanelMatrix& m, const RowMajorWeights& from, const PanelWeights& to) {
  SLUICE_TRY(check(m, from, to));
  return pack_rows(m, spans_of(m, from), to, {.threads = 1, .nan_scales = NanScales::kKeep}).status();
}

Status unpack_panels16(const PanelMatrix& m, const PanelWeights& from, const RowMajorWeights& to) {
  SLUICE_TRY(check(m, to, from));
  const PanelSource rows = spans_of(m, to);
  for (int64_t panel = 0; panel < shape_of(m).panels; ++panel) {
    const PanelRefs refs = rows_of(m, rows, panel);
    PanelLanesOut codes{}, scales{};
    for (size_t lane = 0; lane < refs.size(); ++lane) {
      const auto& [span, row] = refs[lane];
      if (!span) continue;
      codes[lane] = const_cast<std::byte*>(span->w) + row * span->stride;  // of `to`, which is ours to write
      if (is_fp4(m)) scales[lane] = const_cast<std::byte*>(span->scales) + row * span->scale_stride;
    }
    const PanelPlaces places = places_of(m, from, panel);
    if (!is_fp4(m)) {
      unpack_panel_bf16(places.w, m.width, codes);
      continue;
    }
    unpack_panel_codes(places.w, m.width, codes);
    unpack_panel_scales(places.scales, blocks_of(m), scales);
  }
  return {};
}

}  // namespace sluice
