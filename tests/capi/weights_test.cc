#include <cstring>

#include "capi/support.h"

namespace sluice::test {
namespace {

// A gated matrix of 20 features and 64 columns, in the checkpoint's layout and packed.
struct Packed {
  sluice_panel_matrix matrix{20, 64, 1, SLUICE_GATE_FIRST, SLUICE_E2M1};
  std::vector<uint8_t> rows = std::vector<uint8_t>(40 * 32), row_scales = std::vector<uint8_t>(40 * 2);
  std::vector<uint8_t> panels, panel_scales;
  Packed() {
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<uint8_t>(i * 37 + 11);
    for (size_t i = 0; i < row_scales.size(); ++i) row_scales[i] = static_cast<uint8_t>(100 + i % 30);
    Message error;
    int64_t bytes = 0, scale_bytes = 0;
    EXPECT_EQ(sluice_panel_bytes(&matrix, &bytes, &scale_bytes, error), SLUICE_OK) << error.str();
    panels.resize(static_cast<size_t>(bytes), 0xEE);
    panel_scales.resize(static_cast<size_t>(scale_bytes), 0xEE);
  }
  sluice_panel_views views() {
    const int64_t w[] = {40, 64}, s[] = {40, 2};
    const int64_t bytes = static_cast<int64_t>(panels.size()),
                  scales = static_cast<int64_t>(panel_scales.size());
    return {sluice_contiguous(rows.data(), SLUICE_E2M1, 2, w),
            sluice_contiguous(row_scales.data(), SLUICE_U8, 2, s),
            sluice_contiguous(panels.data(), SLUICE_U8, 1, &bytes),
            sluice_contiguous(panel_scales.data(), SLUICE_U8, 1, &scales)};
  }
};

TEST(CapiWeights, PacksWhereTheLayoutSaysAndUnpacksTheSame) {
  Packed p;
  const std::vector<uint8_t> rows = p.rows, scales = p.row_scales;
  // Gates and ups of 20 features: two panels each, two blocks per panel.
  EXPECT_EQ(p.panels.size(), 4u * 2 * 256);
  EXPECT_EQ(p.panel_scales.size(), 4u * 2 * 16);
  sluice_panel_views views = p.views();
  Message error;
  ASSERT_EQ(sluice_pack_panels(&p.matrix, &views, error), SLUICE_OK) << error.str();
  EXPECT_EQ(p.panel_scales[0], scales[0]);            // feature 0's gate
  EXPECT_EQ(p.panel_scales[2 * 16], scales[20 * 2]);  // panel 1 starts with feature 0's up, row 20
  EXPECT_EQ(p.panel_scales.back(), 127);              // a padding row
  std::fill(p.rows.begin(), p.rows.end(), uint8_t{0});
  std::fill(p.row_scales.begin(), p.row_scales.end(), uint8_t{0});
  ASSERT_EQ(sluice_unpack_panels(&p.matrix, &views, error), SLUICE_OK) << error.str();
  EXPECT_EQ(p.rows, rows);
  EXPECT_EQ(p.row_scales, scales);
}

TEST(CapiWeights, WrongUseIsNamed) {
  Packed p;
  sluice_panel_views views = p.views();
  const auto refuses = [&](const sluice_panel_matrix* m, const sluice_panel_views* v, const char* words) {
    Message error;
    EXPECT_EQ(sluice_pack_panels(m, v, error), SLUICE_INVALID_ARGUMENT);
    EXPECT_NE(error.str().find(words), std::string::npos) << error.str();
  };
  refuses(nullptr, &views, "matrix: wanted a pointer");
  refuses(&p.matrix, nullptr, "views: wanted a pointer");
  sluice_panel_matrix odd = p.matrix;
  odd.width = 48;
  refuses(&odd, &views, "width: wanted a multiple of 32");
  odd = p.matrix, odd.dtype = SLUICE_F32;
  refuses(&odd, &views, "dtype: wanted SLUICE_BF16 or SLUICE_E2M1, found 0");
  odd = p.matrix, odd.gate_order = 9;
  refuses(&odd, &views, "gate_order: wanted a sluice_gate_order, found 9");
  odd = p.matrix, odd.features = 0;
  refuses(&odd, &views, "features: wanted 1 to 2^20, found 0");
  sluice_panel_views wrong = views;
  wrong.panels.shape[0] -= 1;
  refuses(&p.matrix, &wrong, "wanted u8[2048], found u8[2047]");
  wrong = views, wrong.row_scales.data = nullptr;
  refuses(&p.matrix, &wrong, "null pointer");
  EXPECT_EQ(p.panels[0], 0xEE);  // nothing was written
}

}  // namespace
}  // namespace sluice::test
