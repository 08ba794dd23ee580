#include "weights/packing.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <limits>
#include <memory>
#include <string>

#include "ops/bounds.h"
#include "ops/fragment_codec.h"
#include "ops/op.h"
#include "ops/reference/weight_bounds.h"
#include "weights/faults.h"
#include "weights/panel_codec.h"
#include "weights/row_hash.h"

namespace sluice {
namespace {

PanelShape panels_of(const PackedMatrix& m) { return panel_shape(m.features, m.gated, m.width); }
FragmentShape fragments_of(const PackedMatrix& m) { return fragment_shape(m.features, m.gated, m.width); }
bool in_fragments(const PackedMatrix& m) { return m.layout == WeightLayout::kFragments; }
bool is_scaled(const PackedMatrix& m) { return m.format().scaled(); }
int64_t row_bytes(const PackedMatrix& m) { return bytes_of(m.w, m.width); }
int64_t scale_bytes(const PackedMatrix& m) { return m.format().row_scale_bytes(m.width); }
// Bytes of the staging buffer for one row: its weights, then its scales.
int64_t stage_bytes(const PackedMatrix& m) { return row_stage_bytes(m.format(), m.width); }

Status check_matrix(const PackedMatrix& m) {
  Refusal r;
  need_between(r, "features", m.features, 1, int64_t{1} << 20);
  need_between(r, "width", m.width, 1, int64_t{1} << 20);
  need_weight_format(r, m.format(), m.width);
  r.need(m.layout != WeightLayout::kRowMajor, "layout panels16 or fragments",
         "layout=" + std::string(word(m.layout)));
  return r.accepted() ? Status{} : invalid(std::string(word(m.layout)) + ": " + r.line());
}

Status check_packed(const PackedMatrix& m, const PackedWeights& packed) {
  const PackedSizes sizes = packed_sizes(m);
  SLUICE_TRY(check_slot(slot("packed w", Role::kIn, DType::kU8, {sizes.code_bytes}), packed.w, Backend::kCpu,
                        is_scaled(m) ? 1 : 2));
  return check_slot(slot("packed scales", Role::kIn, DType::kU8, {sizes.scale_bytes}, is_scaled(m)),
                    packed.scales, Backend::kCpu, 1);
}

Status check_rows(const PackedMatrix& m, const RowMajorWeights& rows) {
  const int64_t weight_rows = m.gated ? 2 * m.features : m.features;
  SLUICE_TRY(check_slot(slot("w", Role::kIn, m.w, {weight_rows, m.width}), rows.w, Backend::kCpu, 1));
  return check_slot(slot("scales", Role::kIn, DType::kU8, {weight_rows, scale_bytes(m)}, is_scaled(m)),
                    rows.scales, Backend::kCpu, 1);
}

Status check(const PackedMatrix& m, const RowMajorWeights& rows, const PackedWeights& packed) {
  SLUICE_TRY(check_matrix(m));
  SLUICE_TRY(check_rows(m, rows));
  return check_packed(m, packed);
}

// How a span stores its rows, for messages.
std::string span_text(const RowSpan& s) {
  if (!s.w) return "a null pointer";
  if (s.form == RowForm::kColumns) return "columns of " + std::string(text(s.type));
  const std::string form = s.form == RowForm::kF8Blocks ? "FP8 blocks" : "rows";
  if (!s.scales) return form + " without scales";
  const bool whole = s.first_column % kScaleColumns == 0 && s.first_row % kScaleFeatures == 0;
  return form + (whole ? "" : " that begin inside a block");
}

Status check_spans(const PackedMatrix& m, const std::vector<RowSpan>& spans, const char* what,
                   int64_t wanted) {
  int64_t rows = 0;
  for (const RowSpan& s : spans) {
    if (!can_read(s, m.format()))
      return invalid(std::string(word(m.layout)) + ": " + what + ": wanted spans of " + text(m.format()) +
                     ", found " + span_text(s));
    rows += s.rows;
  }
  if (rows == wanted) return {};
  return invalid(std::string(word(m.layout)) + ": " + what + ": wanted " + std::to_string(wanted) +
                 " rows, found " + std::to_string(rows));
}

Status check(const PackedMatrix& m, const MatrixSource& from) {
  SLUICE_TRY(check_matrix(m));
  SLUICE_TRY(check_spans(m, from.rows, m.gated ? "gates" : "rows", m.features));
  return check_spans(m, from.ups, "ups", m.gated ? m.features : 0);
}

// A group is a set of rows that are packed into one contiguous piece: a panel or a row block. `lane` is a
// row's index in its group, `place` its index over all groups.
constexpr size_t kLanesMax = kFragmentRows;
int64_t lanes_of(const PackedMatrix& m) { return in_fragments(m) ? kFragmentRows : kPanelRows; }
int64_t groups_of(const PackedMatrix& m) {
  return in_fragments(m) ? fragments_of(m).row_blocks : panels_of(m).panels;
}

// The feature of a lane, and whether the lane is the feature's up row. Features beyond the matrix are
// padding.
FragmentFeature feature_of(const PackedMatrix& m, int64_t group, int64_t lane) {
  if (in_fragments(m)) return fragment_feature(m.gated, {group, lane});
  return {(m.gated ? group / 2 : group) * kPanelRows + lane, m.gated && group % 2 == 1};
}

// Locates a lane's row: the span, and the row inside it.
struct RowRef {
  const RowSpan* span = nullptr;  // null: padding
  int64_t row = 0;
};
RowRef row_of(const PackedMatrix& m, const MatrixSource& from, int64_t group, int64_t lane) {
  const FragmentFeature f = feature_of(m, group, lane);
  int64_t row = f.feature;
  for (const RowSpan& s : f.up ? from.ups : from.rows) {
    if (row < s.rows) return {&s, row};
    row -= s.rows;
  }
  return {};
}

// The rows of a group. Null: padding, or a lane beyond the layout's group size.
using Lanes = std::array<const std::byte*, kLanesMax>;
using LanesOut = std::array<std::byte*, kLanesMax>;
Lanes read_only(const LanesOut& lanes) {
  Lanes out{};
  std::copy(lanes.begin(), lanes.end(), out.begin());
  return out;
}
template <class To, class From>
To first_lanes(const From& lanes) {
  To out{};
  std::copy_n(lanes.begin(), out.size(), out.begin());
  return out;
}

uint64_t hash_rows(const PackedMatrix& m, const Lanes& codes, const Lanes& scales) {
  std::array<HashPiece, 2 * kLanesMax> pieces;
  size_t count = 0;
  for (size_t lane = 0; lane < codes.size(); ++lane) {
    if (!codes[lane]) continue;
    pieces[count++] = {codes[lane], static_cast<size_t>(row_bytes(m))};
    if (is_scaled(m)) pieces[count++] = {scales[lane], static_cast<size_t>(scale_bytes(m))};
  }
  return hash_pieces(pieces.data(), count);
}

// The first faulty place: the minimum over all threads, so the result does not depend on their timing.
class FirstFault {
 public:
  void report(int64_t place) {
    int64_t lowest = place_.load();
    while (place < lowest && !place_.compare_exchange_weak(lowest, place)) {
    }
  }
  bool any() const { return place() != kNone; }
  int64_t place() const { return place_.load(); }
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

 private:
  std::atomic<int64_t> place_{kNone};
};

Status no_number(const PackedMatrix& m, const MatrixSource& from, int64_t place) {
  const RowRef at = row_of(m, from, place / lanes_of(m), place % lanes_of(m));
  return {Code::kCorrupt, fault_text(*at.span, m.format(), at.row, m.width)};
}

// Rows per work item: enough that the cost of claiming an item does not matter.
constexpr int64_t kRowsAtOnce = 128;

// Calls f(group, stage) for every group on several threads; `stage` is a staging buffer for a group's rows.
template <class F>
void for_each_group(const PackedMatrix& m, const PackOptions& options, F f) {
  const int64_t groups = groups_of(m), at_once = kRowsAtOnce / lanes_of(m);
  const int64_t items = (groups + at_once - 1) / at_once;
  const auto item = [&](int64_t i) {
    const auto stage =
        std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(lanes_of(m) * stage_bytes(m)));
    for (int64_t g = i * at_once; g < std::min(groups, (i + 1) * at_once); ++g) f(g, stage.get());
  };
  parallel_for(options.threads, items, item);
}

// Reads the rows of every group, passes them to put(group, codes, scales), and returns their fingerprint.
template <class Put>
Result<uint64_t> read_groups(const PackedMatrix& m, const MatrixSource& from, const PackOptions& options,
                             Put put) {
  std::vector<uint64_t> hashes(static_cast<size_t>(groups_of(m)));
  FirstFault fault;
  for_each_group(m, options, [&](int64_t group, std::byte* stage) {
    if (fault.any()) return;
    Lanes codes{}, scales{};
    for (int64_t lane = 0; lane < lanes_of(m); ++lane) {
      const auto [span, row] = row_of(m, from, group, lane);
      if (!span) continue;
      const auto at = static_cast<size_t>(lane);
      const RowBytes bytes = read_row(*span, m.format(), row, m.width, stage + lane * stage_bytes(m));
      codes[at] = bytes.codes, scales[at] = bytes.scales;
      if (options.no_numbers == NoNumbers::kRefuse && has_fault(m.format(), bytes, m.width))
        return fault.report(group * lanes_of(m) + lane);
    }
    // Hashing comes first because it reads the rows in order; packing then finds them in the cache.
    hashes[static_cast<size_t>(group)] = hash_rows(m, codes, scales);
    put(group, codes, scales);
  });
  if (fault.any()) return no_number(m, from, fault.place());
  return fingerprint_of(hashes);
}

// The location of a group's packed bytes.
FragmentBlock place_of(const PackedMatrix& m, const PackedWeights& packed, int64_t group) {
  auto* w = packed.w.as<std::byte>();
  auto* scales = is_scaled(m) ? packed.scales.as<std::byte>() : nullptr;
  if (in_fragments(m)) return fragment_block(fragments_of(m), m.format(), w, scales, group);
  const PanelShape shape = panels_of(m);
  return {w + group * (shape.code_bytes(m.format()) / shape.panels),
          scales ? scales + group * shape.panel_scale_bytes(m.format()) : nullptr, nullptr};
}

void pack_group(const PackedMatrix& m, const Lanes& codes, const Lanes& scales, const FragmentBlock& to) {
  if (in_fragments(m)) {
    if (!is_scaled(m)) return pack_fragment_rows_bf16(codes, m.width, to.codes);
    return pack_fragment_rows(m.format(), m.gated, codes, scales, m.width, to);
  }
  const auto rows = first_lanes<PanelLanes>(codes);
  if (!is_scaled(m)) return pack_panel_bf16(rows, m.width, to.codes);
  m.w == DType::kE4M3 ? pack_panel_e4m3(rows, m.width, to.codes) : pack_panel_codes(rows, m.width, to.codes);
  pack_panel_scales(m.format(), first_lanes<PanelLanes>(scales), m.width, to.scales);
}

void unpack_group(const PackedMatrix& m, const FragmentBlock& from, const LanesOut& codes,
                  const LanesOut& scales) {
  if (in_fragments(m)) {
    if (!is_scaled(m)) return unpack_fragment_rows_bf16(from.codes, m.width, codes);
    return unpack_fragment_rows(m.format(), from, m.width, codes, scales);
  }
  const auto rows = first_lanes<PanelLanesOut>(codes);
  if (!is_scaled(m)) return unpack_panel_bf16(from.codes, m.width, rows);
  m.w == DType::kE4M3 ? unpack_panel_e4m3(from.codes, m.width, rows)
                      : unpack_panel_codes(from.codes, m.width, rows);
  unpack_panel_scales(m.format(), from.scales, m.width, first_lanes<PanelLanesOut>(scales));
}

// Clears the bytes that belong to no row block: in fragments, the padding after the last block's `top` or
// factors.
void clear_behind(const PackedMatrix& m, const PackedWeights& to) {
  if (!in_fragments(m) || !is_scaled(m)) return;
  const FragmentShape s = fragments_of(m);
  const int64_t used = s.top_begin(m.format()) + s.row_blocks * fragment_top_bytes(m.format());
  std::memset(to.scales.as<std::byte>() + used, 0, static_cast<size_t>(s.scale_bytes(m.format()) - used));
}

// The spans of a row-major matrix whose rows are in gate_order.
MatrixSource spans_of(const PackedMatrix& m, const RowMajorWeights& rows) {
  const auto span = [&](int64_t first, int64_t step) {
    RowSpan s{.rows = m.features,
              .w = rows.w.as<const std::byte>() + first * row_bytes(m),
              .stride = step * row_bytes(m)};
    if (is_scaled(m))
      s.scales = rows.scales.as<const std::byte>() + first * scale_bytes(m),
      s.scale_stride = step * scale_bytes(m);
    return s;
  };
  if (!m.gated) return {{span(0, 1)}, {}};
  const int64_t step = m.gate_order == GateOrder::kInterleaved ? 2 : 1;
  return {{span(gated_row(m.gate_order, m.features, 0, false), step)},
          {span(gated_row(m.gate_order, m.features, 0, true), step)}};
}

}  // namespace

PackedSizes packed_sizes(const PackedMatrix& m) {
  if (in_fragments(m))
    return {fragments_of(m).code_bytes(m.format()), fragments_of(m).scale_bytes(m.format())};
  return {panels_of(m).code_bytes(m.format()), panels_of(m).scale_bytes(m.format())};
}

Result<uint64_t> pack_rows(const PackedMatrix& m, const MatrixSource& from, const PackedWeights& to,
                           const PackOptions& options) {
  SLUICE_TRY(check(m, from));
  SLUICE_TRY(check_packed(m, to));
  clear_behind(m, to);
  return read_groups(m, from, options, [&](int64_t group, const Lanes& codes, const Lanes& scales) {
    pack_group(m, codes, scales, place_of(m, to, group));
  });
}

int64_t row_block_count(const PackedMatrix& m) { return fragments_of(m).row_blocks; }
int64_t rows_in_blocks(const PackedMatrix& m, int64_t first, int64_t blocks) {
  const int64_t rows = m.gated ? 2 * m.features : m.features;
  return std::min((first + blocks) * kFragmentRows, rows) - first * kFragmentRows;
}

namespace {

// The lane that holds row `row` of a row block with alternating gates and ups.
int64_t lane_of_row(const PackedMatrix& m, int64_t row) {
  return m.gated ? fragment_row(true, row / 2, row % 2 == 1).row : row;
}

// Merges copies whose sources and targets are both adjacent.
class CopyRuns {
 public:
  void add(std::byte* to, const std::byte* from, int64_t bytes) {
    if (to == from) return;  // already in place
    if (from != from_ + bytes_ || to != to_ + bytes_) finish(), to_ = to, from_ = from;
    bytes_ += bytes;
  }
  void finish() {
    if (bytes_ > 0) std::memcpy(to_, from_, static_cast<size_t>(bytes_));
    bytes_ = 0;
  }

 private:
  std::byte* to_ = nullptr;
  const std::byte* from_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace

Status gather_row_blocks(const PackedMatrix& m, const MatrixSource& from, const RowBlocks& to) {
  SLUICE_TRY(check(m, from));
  if (!in_fragments(m))
    return invalid(std::string(word(m.layout)) + ": wanted layout fragments for rows that a device packs");
  if (to.first < 0 || to.blocks < 0 || to.first + to.blocks > row_block_count(m))
    return invalid("row blocks: wanted a range within 0 to " + std::to_string(row_block_count(m) - 1) +
                   ", found " + std::to_string(to.first) + " to " + std::to_string(to.first + to.blocks - 1));
  const int64_t own = row_bytes(m), own_scales = scale_bytes(m);
  std::vector<std::byte> stage(static_cast<size_t>(stage_bytes(m)));
  CopyRuns rows, scales;
  for (int64_t block = to.first; block < to.first + to.blocks; ++block) {
    std::byte* w = to.w + (block - to.first) * kFragmentRows * own;
    std::byte* s = own_scales > 0 ? to.scales + (block - to.first) * kFragmentRows * own_scales : nullptr;
    Lanes codes_of{}, scales_of{};
    for (int64_t r = 0; r < rows_in_blocks(m, block, 1); ++r) {
      const int64_t lane = lane_of_row(m, r);
      const auto [span, row] = row_of(m, from, block, lane);
      const auto at = static_cast<size_t>(lane);
      codes_of[at] = w + r * own;
      if (own_scales > 0) scales_of[at] = s + r * own_scales;
      const RowBytes bytes = read_row(*span, m.format(), row, m.width, stage.data());
      // Staged bytes are copied immediately, because the next row overwrites them; other bytes are copied in long runs.
      const auto copy = [&](CopyRuns& runs, std::byte* target, const std::byte* source, int64_t count) {
        const bool staged = source >= stage.data() && source < stage.data() + stage.size();
        staged ? static_cast<void>(std::memcpy(target, source, static_cast<size_t>(count)))
               : runs.add(target, source, count);
      };
      copy(rows, w + r * own, bytes.codes, own);
      if (own_scales > 0) copy(scales, s + r * own_scales, bytes.scales, own_scales);
    }
    // Rows are copied in address order, which the hardware prefetcher follows, then checked and hashed from
    // the cache in lane order.
    rows.finish();
    scales.finish();
    for (size_t lane = 0; lane < codes_of.size(); ++lane)
      if (codes_of[lane] && has_fault(m.format(), {codes_of[lane], scales_of[lane]}, m.width))
        return no_number(m, from, block * kFragmentRows + static_cast<int64_t>(lane));
    to.hashes[block - to.first] = hash_rows(m, codes_of, scales_of);
  }
  return {};
}

uint64_t fingerprint_of(std::span<const uint64_t> hashes) {
  const HashPiece all{hashes.data(), hashes.size_bytes()};
  return hash_pieces(&all, 1);
}

Status check_weights(const PackedMatrix& m, const MatrixSource& from, int threads) {
  SLUICE_TRY(check(m, from));
  FirstFault fault;
  for_each_group(m, {.threads = threads}, [&](int64_t group, std::byte* stage) {
    for (int64_t lane = 0; lane < lanes_of(m) && !fault.any(); ++lane) {
      const RowRef at = row_of(m, from, group, lane);
      if (!at.span) continue;
      if (has_fault(m.format(), read_row(*at.span, m.format(), at.row, m.width, stage), m.width))
        fault.report(group * lanes_of(m) + lane);
    }
  });
  return fault.any() ? no_number(m, from, fault.place()) : Status{};
}

Result<uint64_t> fingerprint(const PackedMatrix& m, const PackedWeights& packed, int threads) {
  SLUICE_TRY(check_matrix(m));
  SLUICE_TRY(check_packed(m, packed));
  std::vector<uint64_t> hashes(static_cast<size_t>(groups_of(m)));
  for_each_group(m, {.threads = threads}, [&](int64_t group, std::byte* stage) {
    LanesOut codes{}, scales{};
    for (int64_t lane = 0; lane < lanes_of(m); ++lane) {
      if (feature_of(m, group, lane).feature >= m.features) continue;
      const auto at = static_cast<size_t>(lane);
      codes[at] = stage + lane * stage_bytes(m);
      scales[at] = codes[at] + 2 * m.width;
    }
    unpack_group(m, place_of(m, packed, group), codes, scales);
    hashes[static_cast<size_t>(group)] = hash_rows(m, read_only(codes), read_only(scales));
  });
  return fingerprint_of(hashes);
}

Status pack_matrix(const PackedMatrix& m, const RowMajorWeights& from, const PackedWeights& to) {
  SLUICE_TRY(check(m, from, to));
  return pack_rows(m, spans_of(m, from), to, {.threads = 1, .no_numbers = NoNumbers::kKeep}).status();
}

Status unpack_matrix(const PackedMatrix& m, const PackedWeights& from, const RowMajorWeights& to) {
  SLUICE_TRY(check(m, to, from));
  const MatrixSource rows = spans_of(m, to);
  for (int64_t group = 0; group < groups_of(m); ++group) {
    LanesOut codes{}, scales{};
    for (int64_t lane = 0; lane < lanes_of(m); ++lane) {
      const auto [span, row] = row_of(m, rows, group, lane);
      if (!span) continue;
      const auto at = static_cast<size_t>(lane);
      codes[at] = const_cast<std::byte*>(span->w) + row * span->stride;  // points into `to`, so not const
      if (is_scaled(m)) scales[at] = const_cast<std::byte*>(span->scales) + row * span->scale_stride;
    }
    unpack_group(m, place_of(m, from, group), codes, scales);
  }
  return {};
}

}  // namespace sluice
