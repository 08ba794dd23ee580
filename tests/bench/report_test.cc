// Measured rows are read, refused, tabulated and plotted. tests/data/bench/ holds rows and the pages that the
// report makes of them; SLUICE_UPDATE_GOLDENS=1 in the environment writes these pages instead of comparing
// them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <utility>

#include "base/json.h"
#include "report/figure.h"
#include "report/page.h"
#include "report/readme.h"

namespace sluice::bench {
namespace {

const std::string kData = std::string(SLUICE_SOURCE_DIR) + "/tests/data/bench/";
const std::string kHeader(kCsvHeader);

std::string text_of(const std::string& path) { return read_file(path, 1 << 20).value(); }

std::vector<Row> rows_of(const Suite& suite) {
  const std::string name = std::string(suite.name) + ".csv";
  return parse_csv(text_of(kData + name), name, suite.name).value();
}

TEST(ReportGolden, Pages) {
  for (const Suite& suite : kSuites) {
    const std::string page = page_of(suite, figures_of(rows_of(suite)));
    const std::string path = kData + std::string(suite.name) + ".md.txt";
    if (std::getenv("SLUICE_UPDATE_GOLDENS")) {
      std::ofstream(path, std::ios::binary) << page;
      continue;
    }
    EXPECT_EQ(page, text_of(path)) << "rewrite it with ./dev goldens, and review the diff";
  }
}

TEST(Report, RowsComeBackAsTheyWereWritten) {
  for (const Suite& suite : kSuites) {
    std::string text = kHeader + "\n";
    for (const Row& row : rows_of(suite)) text += csv_line(row).value();
    EXPECT_EQ(text, text_of(kData + std::string(suite.name) + ".csv"));
  }
}

TEST(Report, FieldsThatWouldBreakALineAreRefused) {
  Row row = rows_of(kSuites[0]).front();
  row.version = "1.0, or so";
  EXPECT_EQ(csv_line(row).status().message,
            "csv: version: wanted no comma, no quote and one line, found '1.0, or so'");
}

TEST(Report, ForeignVersionsAreEscaped) {
  Row row = rows_of(kSuites[0]).front();
  row.version = csv_word("1.0, \"best\" of <32>\n\xc3\xa9|`");
  EXPECT_EQ(row.version, "1.0;  best  of  32      ");
  const auto line = csv_line(row);
  ASSERT_TRUE(line.ok()) << line.status().message;
  EXPECT_TRUE(parse_csv(kHeader + "\n" + line.value(), "r.csv", "router").ok());
}

TEST(Report, WrongRowsAreRefusedWithTheirLine) {
  const std::string good = "router,router_gemm,2880x128,1,sluice,1a2b3c4,2.0,1.9,2.1,743552,737280,\n";
  const std::pair<std::string, std::string> cases[] = {
      {"", "router.csv:1: wanted the header " + kHeader + ", found ''"},
      {"op,suite\n" + good, "router.csv:1: wanted the header " + kHeader + ", found 'op,suite'"},
      {kHeader + "\n", "router.csv:1: wanted rows after the header, found 'none'"},
      {kHeader + "\nrouter,router_gemm,2880x128,1\n", "router.csv:2: wanted 12 fields, found '4'"},
      {kHeader + "\n" + good + "\n", "router.csv:3: wanted 12 fields, found '1'"},
      {kHeader + "\nrouting,chain,2880x128,1,sluice,1a2b3c4,2.0,1.9,2.1,1,1,\n",
       "router.csv:2: wanted suite router, found 'routing'"},
      {kHeader + "\nrouter,../gemm,2880x128,1,sluice,1a2b3c4,2.0,1.9,2.1,1,1,\n",
       "router.csv:2: wanted a-z, 0-9 and _ for op, found '../gemm'"},
      {kHeader + "\nrouter,router_gemm,2880|128,1,sluice,1a2b3c4,2.0,1.9,2.1,1,1,\n",
       "router.csv:2: wanted printable ASCII without | ` \" < > for model, found '2880|128'"},
      {kHeader + "\nrouter,router_gemm,2880x128,0,sluice,1a2b3c4,2.0,1.9,2.1,1,1,\n",
       "router.csv:2: wanted a whole number >= 1 for tokens, found '0'"},
      {kHeader + "\nrouter,router_gemm,2880x128,1.5,sluice,1a2b3c4,2.0,1.9,2.1,1,1,\n",
       "router.csv:2: wanted a whole number >= 1 for tokens, found '1.5'"},
      {kHeader + "\nrouter,router_gemm,2880x128,1,,1a2b3c4,2.0,1.9,2.1,1,1,\n",
       "router.csv:2: wanted a value for impl, found ''"},
      {kHeader + "\nrouter,router_gemm,2880x128,1,sluice,1a2b3c4,fast,1.9,2.1,1,1,\n",
       "router.csv:2: wanted a number >= 0 for median_us, found 'fast'"},
      {kHeader + "\nrouter,router_gemm,2880x128,1,sluice,1a2b3c4,nan,1.9,2.1,1,1,\n",
       "router.csv:2: wanted a number >= 0 for median_us, found 'nan'"},
      {kHeader + "\nrouter,router_gemm,2880x128,1,sluice,1a2b3c4,2.0,1.9,2.1,-1,1,\n",
       "router.csv:2: wanted a number >= 0 for bytes, found '-1'"},
      {kHeader + "\nrouter,router_gemm,2880x128,1,sluice,1a2b3c4,2.0,0,2.1,1,1,\n",
       "router.csv:2: wanted p10_us > 0, found '0'"},
      {kHeader + "\nrouter,router_gemm,2880x128,1,sluice,1a2b3c4,1.8,1.9,2.1,1,1,\n",
       "router.csv:2: wanted median_us >= p10_us, found '1.8'"},
      {kHeader + "\nrouter,router_gemm,2880x128,1,sluice,1a2b3c4,2.0,1.9,1.95,1,1,\n",
       "router.csv:2: wanted p90_us >= median_us, found '1.95'"},
      {kHeader + "\n" + good + "router,router_gemm,2880x128,1,tiny,1,2.0,1.9,2.1,743553,737280,\n",
       "router.csv:3: wanted bytes 743552 as on line 2, found '743553'"},
      {kHeader + "\n" + good + "router,router_gemm,2880x128,1,tiny,1,2.0,1.9,2.1,743552,1,\n",
       "router.csv:3: wanted flops 737280 as on line 2, found '1'"},
      {kHeader + "\n" + good.substr(0, good.size() - 1) + "plain; p99 2.2\n" +
           good.substr(0, good.size() - 1) + "plain; p99 2.3\n",
       "router.csv:3: wanted one row for sluice (there is one on line 2), found 'sluice'"},
      {kHeader + "\n" + good + good,
       "router.csv:3: wanted one row for sluice (there is one on line 2), found 'sluice'"},
  };
  for (const auto& [text, message] : cases) {
    const auto rows = parse_csv(text, "router.csv", "router");
    EXPECT_EQ(rows.status().code, Code::kCorrupt) << text;
    EXPECT_EQ(rows.status().message, message);
  }
  EXPECT_TRUE(parse_csv(kHeader + "\r\n" + good.substr(0, good.size() - 1), "router.csv", "router").ok());
}

TEST(Report, PanelsPutOursFirstAndCompareOnlyWhatIsThere) {
  const std::vector<Figure> figures = figures_of(rows_of(kSuites[0]));
  ASSERT_EQ(figures.size(), 1u);
  ASSERT_EQ(figures[0].panels.size(), 2u);
  const Panel& panel = figures[0].panels[0];
  EXPECT_EQ(title_of(panel), "2880x128, short replays");
  std::vector<std::string> impls;
  for (const Series& s : panel.series) impls.push_back(s.impl);
  EXPECT_EQ(impls, (std::vector<std::string>{"sluice", "cublaslt", "tinygemm"}));
  EXPECT_DOUBLE_EQ(*ratio_at(panel, 1), 2.6 / 2.0);        // against tinygemm, the faster of two
  EXPECT_DOUBLE_EQ(*ratio_at(panel, 64), 5.75 / 2.125);    // tinygemm has no row
  EXPECT_DOUBLE_EQ(*ratio_at(panel, 16384), 29.6 / 30.2);  // ratios below 1 are reported, too
  EXPECT_FALSE(ratio_at(figures[0].panels[1], 2).has_value());
  // Both counts are bound by bytes: for 16384 tokens, 99303680 / 4.55e6 > 12079595520 / 700e6.
  EXPECT_DOUBLE_EQ(panel.floor_us.at(1), kFloorLaunchUs + 743552 / kFloorBytesPerUs);
  EXPECT_DOUBLE_EQ(panel.floor_us.at(16384), kFloorLaunchUs + 99303680 / kFloorBytesPerUs);
}

TEST(Report, TheFloorIsOfFlopsWhereTheyTakeLonger) {
  const auto rows =
      parse_csv(kHeader + "\nrouter,router_gemm,1x1,8,tiny,1,9,9,9,4.55e6,7e9,\n", "r.csv", "router");
  ASSERT_TRUE(rows.ok()) << rows.status().message;
  const Panel panel = figures_of(rows.value())[0].panels[0];
  EXPECT_DOUBLE_EQ(panel.floor_us.at(8), kFloorLaunchUs + 10);
  EXPECT_FALSE(ratio_at(panel, 8).has_value());  // no row of Sluice
}

TEST(Report, HeadingsNamePaceAndRouting) {
  const std::pair<Panel, const char*> cases[] = {
      {{"moe_layer", "m", "burst uniform", {}, {}}, "m, burst, routing uniform"},
      {{"moe_layer", "m", "sustained zipf", {}, {}}, "m, sustained, routing zipf"},
      {{"draft_step", "m", "burst by router", {}, {}}, "m, burst, routing by router"},
      {{"moe_layer", "m", "bursty uniform", {}, {}}, "m, short replays, bursty uniform"},
      {{"chain", "m", "with copies", {}, {}}, "m, short replays, routing by router, with copies"},
      {{"route_group", "m", "plain", {}, {}}, "m, short replays, routing by random logits, plain"},
      {{"decode", "m", "context 1024 sustained", {}, {}}, "m, sustained, context 1024"},
      {{"decode", "m", "context 1024 zipf burst", {}, {}}, "m, burst, routing zipf, context 1024"},
      {{"prefill", "m", "prompt unsustained", {}, {}}, "m, short replays, prompt unsustained"},
      {{"router_gemm", "m", "", {}, {}}, "m, short replays"},
  };
  for (const auto& [panel, title] : cases) EXPECT_EQ(title_of(panel), title);
}

// A remark after "; " belongs to one row and does not prevent comparisons.
TEST(Report, RemarksOfRowsAreNotCompared) {
  const std::vector<Figure> figures = figures_of(rows_of(kSuites[5]));
  ASSERT_EQ(figures.size(), 5u);
  const Panel& panel = figures[0].panels[0];
  EXPECT_EQ(panel.note, "1024 in 128 out");
  EXPECT_EQ(series_named(panel, "sluice")->at.at(64).remark, "p99 800.00 ms");
  EXPECT_DOUBLE_EQ(*ratio_at(panel, 1), 1.5);
  EXPECT_DOUBLE_EQ(*ratio_at(panel, 64), 0.95);  // against the faster of two
  EXPECT_EQ(remark_of("plain;p99"), "");
  EXPECT_EQ(compared_note("plain; p99; p99.9"), "plain");
}

// A loaded server has no roofline, and its figures label their own axes.
TEST(Report, ServersHaveAxesOfTheirOwn) {
  const std::vector<Figure> figures = figures_of(rows_of(kSuites[5]));
  for (const Figure& figure : figures) {
    const bool rate = figure.op == kOutputTokenOp, prompt = figure.op == "cached_prompt";
    EXPECT_EQ(figure.axes.x, prompt ? "tokens" : "concurrency") << figure.op;
    EXPECT_EQ(figure.axes.y, rate ? "µs" : "ms") << figure.op;
    EXPECT_EQ(figure.axes.us_per_unit, rate ? 1 : 1000) << figure.op;
    for (const Panel& panel : figure.panels) EXPECT_TRUE(panel.floor_us.empty()) << figure.op;
  }
  EXPECT_FALSE(serving_axes("decode").has_value());
}

// Conditions that all panels share are written once, below the figure's heading.
TEST(Report, FiguresSayOnceWhatPanelsShare) {
  Figure figure = figures_of(rows_of(kSuites[3]))[0];
  EXPECT_EQ(text_of(common_conditions(figure)), "burst, routing uniform");
  EXPECT_EQ(title_of(figure.panels[0], common_conditions(figure)), "nemotron-3-nano");
  figure.panels.push_back(figure.panels[0]);
  figure.panels[1].note = "sustained uniform";
  EXPECT_EQ(text_of(common_conditions(figure)), "routing uniform");
  EXPECT_EQ(title_of(figure.panels[1], common_conditions(figure)), "nemotron-3-nano, sustained");
}

TEST(Report, PeersWithoutRowsAreNamed) {
  const Figure figure = figures_of(rows_of(kSuites[2]))[0];
  EXPECT_EQ(missing_peers(figure, figure.panels[0]),
            "");  // humming lacks a row at one count only, which its column shows
  EXPECT_EQ(missing_peers(figure, figure.panels[1]), "humming");
}

// The README's table names the libraries that were measured, and the counts without a measurement.
TEST(Report, TheReadmeHasBurstsAndSustainedWork) {
  const std::string table = readme_table(figures_of(rows_of(kSuites[2])));
  EXPECT_EQ(table,
            "| tokens | 1 | 8 | 64 | 256 | 1024 | 4096 |\n"
            "|---|--:|--:|--:|--:|--:|--:|\n"
            "| burst, Sluice | 21.0 |  | 350 |  |  |  |\n"
            "| burst, fastest other library | 47.5 vllm-marlin |  | 561 humming |  |  |  |\n"
            "| sustained, Sluice | 22.0 |  | 367 |  |  |  |\n"
            "| sustained, fastest other library | 49.0 vllm-marlin |  | 612 vllm-marlin |  |  |  |\n"
            "\nMicroseconds, medians; routing uniform; Sluice at 1a2b3c4, 5d6e7f8-dirty.\n"
            "Other libraries, burst: humming, vllm-marlin.\n"
            "Other libraries, sustained: vllm-marlin. No rows of humming.\n");
  std::vector<Row> rows = rows_of(kSuites[2]);
  std::erase_if(rows, [](const Row& r) { return r.impl == "humming" && r.tokens == 64; });
  EXPECT_NE(readme_table(figures_of(rows))
                .find("Other libraries, burst: humming, vllm-marlin. No rows of humming at 64.\n"),
            std::string::npos);
  EXPECT_EQ(readme_table(figures_of(rows_of(kSuites[0]))), "");
}

TEST(Report, ATableStandsBetweenTheMarks) {
  const std::string begin(kReadmeBegin), end(kReadmeEnd);
  EXPECT_EQ(with_table("a\n" + begin + "old\n" + end + "b\n", "new\n").value(),
            "a\n" + begin + "new\n" + end + "b\n");
  EXPECT_EQ(with_table("a\n" + end, "new\n").status().message,
            "wanted the line '<!-- sluice bench report: begin -->' in the README, found none");
  EXPECT_EQ(with_table(end + begin, "new\n").status().message,
            "wanted the line '<!-- sluice bench report: end -->' in the README, found none");
}

// Records what is plotted.
class Sketch final : public Canvas {
 public:
  struct Line {
    std::vector<Point> points;
    double width;
    Colour colour;
  };
  std::vector<Line> lines;
  std::vector<std::vector<Point>> areas;
  std::vector<Point> all;
  void area(std::span<const Point> corners, Colour) override {
    areas.emplace_back(corners.begin(), corners.end());
    all.insert(all.end(), corners.begin(), corners.end());
  }
  void line(std::span<const Point> points, Colour colour, double width, Dash) override {
    lines.push_back({{points.begin(), points.end()}, width, colour});
    all.insert(all.end(), points.begin(), points.end());
  }
  void disc(Point centre, double, Colour) override { all.push_back(centre); }
  void text(Point at, std::string_view, const TextStyle&) override { all.push_back(at); }
  Result<std::string> finish() override { return std::string(); }
};

TEST(Report, RatesThatWereMeasuredMakeBothFloors) {
  const std::vector<Figure> figures = figures_of(rows_of(kSuites[2]));
  ASSERT_EQ(figures.size(), 1u);  // read and dense_8192 have no figures
  EXPECT_EQ(figures[0].op, "moe_layer");
  // The burst rate of reads and the sustained rate of products.
  EXPECT_DOUBLE_EQ(figures[0].rates.bytes_per_us, 4294967296 / 944.0);
  EXPECT_DOUBLE_EQ(figures[0].rates.flops_per_us, 1099511627776 / 1600.0);
  const Panel& panel = figures[0].panels[0];
  EXPECT_EQ(title_of(panel), "gpt-oss-120b, burst, routing uniform");
  EXPECT_DOUBLE_EQ(panel.bytes_us.at(1), kFloorLaunchUs + 52899840 / figures[0].rates.bytes_per_us);
  EXPECT_DOUBLE_EQ(panel.floor_us.at(1), panel.bytes_us.at(1));
  EXPECT_DOUBLE_EQ(panel.flops_us.at(8192), kFloorLaunchUs + 1630745395200 / figures[0].rates.flops_per_us);
  EXPECT_DOUBLE_EQ(panel.floor_us.at(8192), panel.flops_us.at(8192));
  // Each panel has a line for each of the two floors; the third panel has no floor of flops because it has
  // few tokens.
  Sketch sketch;
  draw(figures[0], {"title"}, sketch);
  const auto floors = std::count_if(sketch.lines.begin(), sketch.lines.end(),
                                    [](const Sketch::Line& l) { return l.width == 1.2; });
  EXPECT_EQ(floors, 5);
  // If a rate is missing, floors use the known values of the GPU.
  std::vector<Row> rows = rows_of(kSuites[2]);
  std::erase_if(rows, [](const Row& r) { return r.op == "read"; });
  EXPECT_FALSE(rates_of(rows).measured);
  EXPECT_TRUE(figures_of(rows)[0].panels[0].bytes_us.empty());
}

// Files of rows may share operations, but each file has its own figures.
TEST(Report, FiguresOfSuitesHaveNamesOfTheirOwn) {
  std::set<std::string> names;
  size_t figures = 0;
  for (const Suite& suite : kSuites)
    for (const Figure& figure : figures_of(rows_of(suite))) {
      names.insert(figure_name(suite, figure));
      ++figures;
    }
  EXPECT_EQ(names.size(), figures);
  EXPECT_TRUE(names.contains("moe_layer"));
  EXPECT_TRUE(names.contains("bf16_moe_layer"));
}

TEST(Report, FiguresFitTheirPageAndSluiceIsThickest) {
  for (const Suite& suite : kSuites)
    for (const Figure& figure : figures_of(rows_of(suite))) {
      Sketch sketch;
      draw(figure, {"title", "models"}, sketch);
      const Size size = size_of(figure);
      for (const Point& p : sketch.all) {
        EXPECT_TRUE(p.x >= 0 && p.x <= size.width && p.y >= 0 && p.y <= size.height) << p.x << " " << p.y;
      }
    }
  Sketch sketch;
  const Figure figure = figures_of(rows_of(kSuites[0]))[0];
  draw(figure, {"title"}, sketch);
  // The first panel's lines of two implementations over three token counts; Sluice's is drawn last, on top.
  // The third implementation lacks the count between its two, so it has no line.
  const Colour third = {0, 145, 105};
  for (const Sketch::Line& l : sketch.lines)
    EXPECT_FALSE(l.colour.r == third.r && l.colour.g == third.g && l.points[0].y != l.points[1].y);
  std::vector<Sketch::Line> curves;
  for (const Sketch::Line& l : sketch.lines)
    if (l.points.size() == 3) curves.push_back(l);
  ASSERT_EQ(curves.size(), 2u);
  EXPECT_GT(curves[1].width, 1.5 * curves[0].width);
  // Both axes are logarithmic: 1, 64 and 16384 tokens are 6 and 8 doublings apart, and cuBLASLt is above
  // Sluice where it is slower.
  const std::vector<Point>& ours = curves[1].points;
  EXPECT_NEAR((ours[1].x - ours[0].x) / (ours[2].x - ours[0].x), 6.0 / 14, 1e-9);
  EXPECT_LT(curves[0].points[0].y, ours[0].y);
  EXPECT_GT(curves[0].points[2].y, ours[2].y);
}

TEST(Report, SvgNamesEverybodyAndEscapes) {
  const Figure figure = figures_of(rows_of(kSuites[0]))[0];
  const Size size = size_of(figure);
  const auto draw_once = [&] {
    const auto canvas = svg_canvas(size.width, size.height, "a < b & c");
    draw(figure, {"a < b & c", "hidden x experts"}, *canvas);
    return canvas->finish().value();
  };
  const std::string svg = draw_once();
  EXPECT_EQ(svg, draw_once());
  EXPECT_EQ(svg.substr(0, 4), "<svg");
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_NE(svg.find("<title>a &lt; b &amp; c</title>"), std::string::npos);
  for (const char* name : {"sluice", "cublaslt", "tinygemm", "floor", "2880x128", "7168x256", "16k", "µs"})
    EXPECT_NE(svg.find(">" + std::string(name) + "</text>"), std::string::npos) << name;
  EXPECT_LT(svg.size(), 16u << 10);
}

}  // namespace
}  // namespace sluice::bench
