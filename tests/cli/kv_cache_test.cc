// --kv-cache-dtype of explain and of the commands that run a model.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/command.h"

namespace sluice::test {

TEST(KvCacheDtype, TheCacheIsOfThatType) {
  const auto memory_line = [](const std::string& type) {
    const Outcome o = sluice({"run", "-p", "What is 2 + 3?", "--max-tokens", "4", "--max-model-len", "512",
                              "--kv-cache-dtype", type});
    EXPECT_EQ(o.status, 0) << o.err;
    const size_t at = o.err.find("cache of ");
    return at == std::string::npos ? o.err : o.err.substr(at, o.err.find(", workspace", at) - at);
  };
  EXPECT_NE(memory_line("auto").find(" tokens of bf16 in "), std::string::npos) << memory_line("auto");
  EXPECT_EQ(memory_line("bfloat16"), memory_line("auto"));
  EXPECT_NE(memory_line("fp8").find(" tokens of e4m3 in "), std::string::npos) << memory_line("fp8");
  EXPECT_EQ(memory_line("fp8_e4m3"), memory_line("fp8"));
}

TEST(KvCacheDtype, ExplainShowsKernelsThatAcceptIt) {
  const std::string model = std::string(SLUICE_SOURCE_DIR) + "/tests/data/gpt-oss-20b";
  const auto problems = [&](const std::string& type) {
    const Outcome o = sluice({"explain", "--model", model, "--tokens", "64", "--device", "cpu-avx512",
                              "--json", "--kv-cache-dtype", type});
    EXPECT_EQ(o.status, 0) << o.err << o.out;
    return o.out;
  };
  EXPECT_EQ(problems("auto").find("cache=e4m3"), std::string::npos);
  EXPECT_NE(problems("fp8").find("cache=e4m3"), std::string::npos) << problems("fp8");
}

// A step's roofline counts bytes of the cache's type, and the row names the type.
TEST(KvCacheDtype, BenchCountsItsBytes) {
  const auto row_of = [&](const std::string& type) {
    const std::string path = testing::TempDir() + "kv_cache_" + type + ".csv";
    const Outcome o = sluice({"bench", "--input-len", "8", "--output-len", "2", "--max-concurrency", "1",
                              "--csv", path, "--kv-cache-dtype", type, "-q"});
    EXPECT_EQ(o.status, 0) << o.err;
    std::ifstream file(path);
    std::string row;
    std::getline(file, row), std::getline(file, row);
    std::filesystem::remove(path);
    return row;
  };
  const auto bytes_in = [](const std::string& row) {  // column 10 of a row
    std::stringstream words(row);
    std::string word;
    for (int i = 0; i < 10; ++i) std::getline(words, word, ',');
    return std::stod(word);
  };
  const std::string same = row_of("auto"), narrow = row_of("fp8");
  EXPECT_EQ(same.find("e4m3"), std::string::npos) << same;
  EXPECT_NE(narrow.find(" e4m3 cache"), std::string::npos) << narrow;
  EXPECT_LT(bytes_in(narrow), bytes_in(same));
}

TEST(KvCacheDtype, RefusesWhatItCannotBe) {
  expect_refusal({"run", "-p", "x", "--kv-cache-dtype", "fp8_e5m2"}, {"'fp8_e4m3'"});
  expect_refusal({"run", "-q", "-p", "x", "--kv-cache-dtype", "bfloat16", "--dtype", "float32"},
                 {"--kv-cache-dtype bfloat16: needs --dtype bfloat16"});
  expect_refusal({"explain", "--model", "gpt-oss-20b", "--kv-cache-dtype", "fp8"},
                 {"only the MoE layer 'gpt-oss-20b', which has no caches"});
  expect_refusal({"explain", "--kv-cache-dtype", "fp8"}, {"--kv-cache-dtype: needs --model"});
}

}  // namespace sluice::test
