#include "apps/bench/bench_report.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <utility>

#include "base/json.h"
#include "report/figure.h"
#include "report/page.h"
#include "report/readme.h"

namespace sluice::apps {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBytesMax = 64 << 20;  // maximum size of a CSV file

Status io_error(const std::string& wanted, const fs::path& path) {
  return {Code::kIo,
          "bench report: wanted " + wanted + " " + path.string() + ", found: " + std::strerror(errno)};
}

Status write_file(const fs::path& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary);
  out << bytes;
  out.close();
  return out ? Status{} : io_error("to write", path);
}

struct File {
  fs::path path;
  std::string bytes;
};

Status add_figure(const bench::Figure& figure, const std::string& name, const fs::path& to,
                  std::vector<File>* files) {
  const bench::Size size = bench::size_of(figure);
  const bench::OpWords words = bench::words_of_op(figure.op);
  const auto canvas = bench::svg_canvas(size.width, size.height, words.title);
  bench::draw(figure, {words.title, words.models}, *canvas);
  Result<std::string> bytes = canvas->finish();
  if (!bytes.ok()) return bytes.status();
  files->push_back({to / (name + ".svg"), std::move(bytes).value()});
  return {};
}

Status add_readme(const std::vector<bench::Figure>& figures, const fs::path& path, std::vector<File>* files) {
  const Result<std::string> text = read_file(path.string(), kBytesMax);
  if (!text.ok()) return text.status();
  Result<std::string> with = bench::with_table(text.value(), bench::readme_table(figures));
  if (!with.ok()) return Status{with.status().code, path.string() + ": " + with.status().message};
  files->push_back({path, std::move(with).value()});
  return {};
}

std::string csv_names() {
  std::string out;
  const size_t count = std::size(bench::kSuites);
  for (size_t i = 0; i < count; ++i)
    out += (i == 0 ? "" : i + 1 < count ? ", " : " or ") + std::string(bench::kSuites[i].name) + ".csv";
  return out;
}

}  // namespace

Result<std::vector<fs::path>> write_report(const ReportOptions& options) {
  std::vector<File> files;
  std::set<std::string> names;
  for (const bench::Suite& suite : bench::kSuites) {
    const fs::path csv = options.from / (std::string(suite.name) + ".csv");
    std::error_code ignored;
    if (!fs::exists(csv, ignored)) continue;
    const Result<std::string> text = read_file(csv.string(), kBytesMax);
    if (!text.ok()) return text.status();
    const auto rows = bench::parse_csv(text.value(), csv.string(), suite.name);
    if (!rows.ok()) return rows.status();
    const std::vector<bench::Figure> figures = bench::figures_of(rows.value());
    for (const bench::Figure& figure : figures) {
      const std::string name = bench::figure_name(suite, figure);
      if (!names.insert(name).second)
        return Status{Code::kCorrupt,
                      csv.string() + ": wanted operations that no other file has, found '" + figure.op + "'"};
      SLUICE_TRY(add_figure(figure, name, options.to, &files));
    }
    files.push_back({options.to / (std::string(suite.name) + ".md"), bench::page_of(suite, figures)});
    if (suite.name == bench::kReadmeSuite && !options.readme.empty())
      SLUICE_TRY(add_readme(figures, options.readme, &files));
  }
  if (files.empty())
    return Status{Code::kIo,
                  "bench report: wanted " + csv_names() + " in " + options.from.string() + ", found none"};
  std::error_code error;
  fs::create_directories(options.to, error);
  if (error)
    return Status{Code::kIo,
                  "bench report: wanted a folder " + options.to.string() + ", found: " + error.message()};
  std::vector<fs::path> written;
  for (const File& file : files) {
    SLUICE_TRY(write_file(file.path, file.bytes));
    written.push_back(file.path);
  }
  return written;
}

}  // namespace sluice::apps
