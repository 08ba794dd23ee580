#include "weights/packing.h"

#include "capi/handles.h"

using namespace sluice;        // NOLINT: the C boundary names every type of the library
using namespace sluice::capi;  // NOLINT

namespace {

static_assert(static_cast<int>(GateOrder::kInterleaved) == SLUICE_INTERLEAVED &&
              static_cast<int>(GateOrder::kGateFirst) == SLUICE_GATE_FIRST &&
              static_cast<int>(GateOrder::kUpFirst) == SLUICE_UP_FIRST);

Status read_matrix(const sluice_panel_matrix* from, PackedMatrix* to) {
  SLUICE_TRY(need_pointer(from, "matrix"));
  const auto bad = [](const char* what, int64_t found) {
    return invalid(std::string("matrix: ") + what + ", found " + std::to_string(found));
  };
  constexpr int64_t kMax = int64_t{1} << 20;
  if (from->features < 1 || from->features > kMax) return bad("features: wanted 1 to 2^20", from->features);
  if (from->width < 1 || from->width > kMax) return bad("width: wanted 1 to 2^20", from->width);
  if (from->gate_order < SLUICE_INTERLEAVED || from->gate_order > SLUICE_UP_FIRST)
    return bad("gate_order: wanted a sluice_gate_order", from->gate_order);
  if (from->dtype != SLUICE_BF16 && from->dtype != SLUICE_E2M1)
    return bad("dtype: wanted SLUICE_BF16 or SLUICE_E2M1", from->dtype);
  if (from->dtype == SLUICE_E2M1 && from->width % kMxBlock != 0)
    return bad("width: wanted a multiple of 32 (one scale for 32 codes)", from->width);
  *to = {.features = from->features,
         .width = from->width,
         .gated = from->gated != 0,
         .gate_order = static_cast<GateOrder>(from->gate_order),
         .w = static_cast<DType>(from->dtype)};
  return {};
}

struct Views {
  RowMajorWeights rows;
  PackedWeights panels;
};
Status read_views(const PackedMatrix& matrix, const sluice_panel_views* from, Views* to) {
  SLUICE_TRY(need_pointer(from, "views"));
  SLUICE_TRY(read_tensor("rows", from->rows, &to->rows.w));
  SLUICE_TRY(read_tensor("panels", from->panels, &to->panels.w));
  if (matrix.w == DType::kBF16) return {};
  SLUICE_TRY(read_tensor("row_scales", from->row_scales, &to->rows.scales));
  return read_tensor("panel_scales", from->panel_scales, &to->panels.scales);
}

template <class Convert>
sluice_status converted(const sluice_panel_matrix* matrix, const sluice_panel_views* views,
                        sluice_text* error, Convert convert) {
  return guarded(error, [&]() -> Status {
    PackedMatrix m;
    Views v;
    SLUICE_TRY(read_matrix(matrix, &m));
    SLUICE_TRY(read_views(m, views, &v));
    return convert(m, v);
  });
}

}  // namespace

extern "C" {

sluice_status sluice_panel_bytes(const sluice_panel_matrix* matrix, int64_t* panel_bytes,
                                 int64_t* scale_bytes, sluice_text* error) {
  return guarded(error, [&]() -> Status {
    PackedMatrix m;
    SLUICE_TRY(read_matrix(matrix, &m));
    SLUICE_TRY(need_pointer(panel_bytes, "panel_bytes"));
    SLUICE_TRY(need_pointer(scale_bytes, "scale_bytes"));
    const PanelShape shape = panel_shape(m.features, m.gated, m.width);
    *panel_bytes = shape.code_bytes(m.format());
    *scale_bytes = shape.scale_bytes(m.format());
    return {};
  });
}

sluice_status sluice_pack_panels(const sluice_panel_matrix* matrix, const sluice_panel_views* views,
                                 sluice_text* error) {
  return converted(matrix, views, error,
                   [](const PackedMatrix& m, const Views& v) { return pack_matrix(m, v.rows, v.panels); });
}

sluice_status sluice_unpack_panels(const sluice_panel_matrix* matrix, const sluice_panel_views* views,
                                   sluice_text* error) {
  return converted(matrix, views, error,
                   [](const PackedMatrix& m, const Views& v) { return unpack_matrix(m, v.panels, v.rows); });
}

}  // extern "C"
