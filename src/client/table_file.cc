#include "client/table_file.h"

#include <algorithm>
#include <optional>
#include <sstream>

#include "base/json.h"

namespace sluice {
namespace {

constexpr int64_t kTableFileBytesMax = int64_t{1} << 30;

using Record = std::vector<std::string>;

// Reads the records of a CSV file.
class CsvReader {
 public:
  CsvReader(std::string_view text, std::string path) : text_(text), path_(std::move(path)) {
    constexpr std::string_view kMark = "\xef\xbb\xbf";
    if (text_.starts_with(kMark)) text_.remove_prefix(kMark.size());
  }
  int64_t line() const { return first_line_; }
  // Returns the next record, or nullopt after the last one.
  Result<std::optional<Record>> next() {
    while (at_ < text_.size() && (text_[at_] == '\n' || text_[at_] == '\r')) step();
    first_line_ = line_;
    if (at_ >= text_.size()) return std::optional<Record>();
    Record out(1);
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '\n' || c == '\r') break;
      if (c == ',') {
        out.emplace_back();
        step();
      } else if (c == '"' && out.back().empty()) {
        SLUICE_TRY(quoted(&out.back()));
      } else {
        out.back() += c;
        step();
      }
    }
    return std::optional<Record>(std::move(out));
  }

 private:
  void step() { line_ += text_[at_++] == '\n'; }
  Status quoted(std::string* out) {
    step();
    while (at_ < text_.size()) {
      const char c = text_[at_];
      step();
      if (c != '"') {
        *out += c;
      } else if (at_ < text_.size() && text_[at_] == '"') {
        *out += c;
        step();
      } else {
        return {};
      }
    }
    return {Code::kCorrupt, path_ + " line " + std::to_string(first_line_) +
                                ": wanted a closing quote, found the end of the file"};
  }
  std::string_view text_;
  std::string path_;
  size_t at_ = 0;
  int64_t line_ = 1, first_line_ = 1;
};

Result<std::vector<TableRow>> read_csv(const std::string& text, const std::string& path,
                                       std::span<const std::string_view> columns) {
  CsvReader reader(text, path);
  const auto header = reader.next();
  if (!header.ok()) return header.status();
  const Record names = header.value().value_or(Record{});
  std::vector<size_t> places;
  for (const std::string_view column : columns) {
    const auto found = std::find(names.begin(), names.end(), column);
    if (found == names.end())
      return Status{Code::kCorrupt, path + ": wanted a column '" + std::string(column) + "', found none"};
    places.push_back(static_cast<size_t>(found - names.begin()));
  }
  std::vector<TableRow> out;
  while (true) {
    const auto record = reader.next();
    if (!record.ok()) return record.status();
    if (!record.value()) return out;
    TableRow row{.where = path + " line " + std::to_string(reader.line()), .cells = {}};
    for (size_t i = 0; i < columns.size(); ++i) {
      if (places[i] >= record.value()->size())
        return Status{Code::kCorrupt, row.where + ": wanted " + std::to_string(names.size()) +
                                          " cells, found " + std::to_string(record.value()->size())};
      row.cells.emplace(columns[i], (*record.value())[places[i]]);
    }
    out.push_back(std::move(row));
  }
}

Result<std::vector<TableRow>> read_lines(const std::string& text, const std::string& path,
                                         std::span<const std::string_view> columns) {
  std::vector<TableRow> out;
  std::istringstream lines(text);
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    TableRow row{.where = path + " line " + std::to_string(number), .cells = {}};
    const auto json = parse_json(line, row.where);
    if (!json.ok()) return json.status();
    for (const std::string_view column : columns) {
      const auto cell = JsonAt(json.value(), row.where).string(std::string(column));
      if (!cell.ok()) return cell.status();
      row.cells.emplace(column, cell.value());
    }
    out.push_back(std::move(row));
  }
  return out;
}

}  // namespace

Result<std::vector<TableRow>> read_table(const std::string& path, std::span<const std::string_view> columns) {
  const auto text = read_file(path, kTableFileBytesMax);
  if (!text.ok()) return text.status();
  auto rows = path.ends_with(".csv") ? read_csv(text.value(), path, columns)
                                     : read_lines(text.value(), path, columns);
  if (rows.ok() && rows.value().empty())
    return Status{Code::kCorrupt, path + ": wanted at least one row, found none"};
  return rows;
}

}  // namespace sluice
