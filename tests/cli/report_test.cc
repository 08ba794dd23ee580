// sluice bench report: its files, and the inputs that it rejects.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "base/json.h"
#include "harness/process.h"

namespace sluice::test {
namespace {

namespace fs = std::filesystem;

const fs::path kData = fs::path(SLUICE_SOURCE_DIR) / "tests/data/bench";

std::string text_of(const fs::path& path) { return read_file(path.string(), 1 << 24).value(); }

// A folder that is removed when the test ends.
class Folder {
 public:
  Folder() : path_(fs::path(testing::TempDir()) / ("sluice_report_" + std::to_string(getpid()))) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
  }

 private:
  fs::path path_;
};

Outcome report(const fs::path& from, const fs::path& to) {
  return run_process({SLUICE_COMMAND, "bench", "report", "--from", from.string(), "--to", to.string()});
}

// Expects status 2, nothing on stdout, one line that contains `part`, and no written file.
void expect_refusal(const fs::path& from, const std::string& part) {
  const fs::path to = from / "out";
  const Outcome o = report(from, to);
  EXPECT_EQ(o.status, 2) << o.out;
  EXPECT_EQ(o.out, "");
  EXPECT_EQ(o.err.find('\n'), o.err.size() - 1) << o.err;
  EXPECT_NE(o.err.find(part), std::string::npos) << part << "\nin " << o.err;
  EXPECT_FALSE(fs::exists(to));
}

TEST(CliReport, WritesPagesAndFiguresTheSameEachTime) {
  const Folder folder;
  const fs::path to = folder.path() / "a/b";  // the command creates it
  const Outcome o = report(kData, to);
  ASSERT_EQ(o.status, 0) << o.err;
  std::string want;
  for (const char* name :
       {"router_gemm.svg", "router.md", "chain.svg", "routing.md", "moe_layer.svg", "mxfp4.md",
        "bf16_moe_layer.svg", "bf16_draft_step.svg", "bf16.md", "engine_prefill.svg", "engine_decode.svg",
        "engine.md", "serving_ttft.svg", "serving_tpot.svg", "serving_itl.svg", "serving_output_token.svg",
        "serving_cached_prompt.svg", "serving.md"})
    want += (to / name).string() + "\n";
  EXPECT_EQ(o.out, want);
  EXPECT_EQ(text_of(to / "router.md"), text_of(kData / "router.md.txt"));
  EXPECT_EQ(text_of(to / "routing.md"), text_of(kData / "routing.md.txt"));
  const std::string svg = text_of(to / "router_gemm.svg");
  for (const char* impl : {">sluice<", ">cublaslt<", ">tinygemm<"})
    EXPECT_NE(svg.find(impl), std::string::npos) << impl;
  EXPECT_NE(svg.find("width=\"1048\""), std::string::npos) << svg.substr(0, 200);  // two panels side by side
  ASSERT_EQ(report(kData, folder.path() / "again").status, 0);
  for (const auto& file : fs::directory_iterator(to))
    EXPECT_EQ(text_of(file.path()), text_of(folder.path() / "again" / file.path().filename())) << file.path();
}

// README.md and docs/benchmarks must agree with bench/measured.
TEST(CliReport, PagesAndReadmeAgreeWithTheRows) {
  const fs::path root = SLUICE_SOURCE_DIR;
  const Folder folder;
  const fs::path readme = folder.path() / "README.md", pages = folder.path() / "pages";
  folder.write("README.md", text_of(root / "README.md"));
  const Outcome o = run_process({SLUICE_COMMAND, "bench", "report", "--from", root / "bench/measured/h200",
                                 "--to", pages.string(), "--readme", readme.string()});
  ASSERT_EQ(o.status, 0) << o.err;
  const std::string next =
      " does not agree with bench/measured/h200; run ./dev sluice bench report --readme README.md";
  EXPECT_TRUE(text_of(readme) == text_of(root / "README.md")) << "README.md" << next;
  std::set<std::string> written, kept;
  for (const auto& file : fs::directory_iterator(pages)) written.insert(file.path().filename());
  for (const auto& file : fs::directory_iterator(root / "docs/benchmarks"))
    kept.insert(file.path().filename());
  EXPECT_EQ(written, kept);
  for (const std::string& name : written) {
    if (!kept.contains(name)) continue;
    EXPECT_TRUE(text_of(pages / name) == text_of(root / "docs/benchmarks" / name)) << name << next;
  }
}

TEST(CliReport, WrongFilesAreRefusedAndNothingIsWritten) {
  const Folder folder;
  const std::string csv = (folder.path() / "router.csv").string();
  expect_refusal(
      folder.path(),
      "bench report: wanted router.csv, routing.csv, mxfp4.csv, bf16.csv, engine.csv or serving.csv in " +
          folder.path().string() + ", found none");
  folder.write("router.csv", "");
  expect_refusal(folder.path(), csv + ":1: wanted the header suite,op,model,");
  std::string rows = text_of(kData / "router.csv");
  folder.write("router.csv", rows + "router,router_gemm,2880x128,1,x,1,2,1,3,1\n");
  expect_refusal(folder.path(), csv + ":12: wanted 12 fields, found '10'");
  folder.write("README.md", "no marks\n");
  const Outcome o = run_process({SLUICE_COMMAND, "bench", "report", "--from", kData.string(), "--to",
                                 folder.path() / "out", "--readme", folder.path() / "README.md"});
  EXPECT_EQ(o.status, 2);
  EXPECT_NE(o.err.find("README.md: wanted the line '<!-- sluice bench report: begin -->'"), std::string::npos)
      << o.err;
  EXPECT_FALSE(fs::exists(folder.path() / "out"));
  // An operation's figures share a file name, so an operation may have only one file of rows.
  folder.write("router.csv", rows);
  folder.write("routing.csv",
               rows.substr(0, rows.find('\n') + 1) + "routing,router_gemm,1x1,1,x,1,2,1,3,1,1,\n");
  expect_refusal(folder.path(), "routing.csv: wanted operations that no other file has, found 'router_gemm'");
}

TEST(CliReport, WordsAndPlacesItCannotUseAreNamed) {
  const Folder folder;
  Outcome o = run_process({SLUICE_COMMAND, "bench", "report", "--form", "x"});
  EXPECT_EQ(o.status, 2);
  EXPECT_EQ(o.err, "sluice: unknown flag '--form'; did you mean '--from'?\n");
  folder.write("file", "");
  o = report(kData, folder.path() / "file");
  EXPECT_EQ(o.status, 2);
  EXPECT_NE(o.err.find("bench report: wanted a folder "), std::string::npos) << o.err;
}

}  // namespace
}  // namespace sluice::test
