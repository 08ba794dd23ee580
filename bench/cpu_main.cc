#include <charconv>
#include <cstring>
#include <iostream>
#include <string_view>

#include "cpu_suite.h"

namespace {

bool parse_count(std::string_view word, int* out) {
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), *out);
  return error == std::errc() && end == word.data() + word.size() && *out > 0;
}

}  // namespace

int main(int argc, char** argv) {
  sluice::bench::CpuBenchOptions options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    bool ok = true;
    if (word == "--json") {
      options.format = sluice::bench::Format::kJson;
    } else if (word == "--threads" && i + 1 < argc) {
      ok = parse_count(argv[++i], &options.threads);
    } else if (word == "--layers" && i + 1 < argc) {
      ok = parse_count(argv[++i], &options.layers);
    } else {
      ok = false;
    }
    if (!ok) {
      std::cerr << "sluice_bench_cpu: wanted [--threads N] [--layers N] [--json], found '" << argv[i]
                << "'\n";
      return 2;
    }
  }
  const sluice::Status status = sluice::bench::run_cpu_suite(options, std::cout);
  if (!status.ok()) std::cerr << "sluice_bench_cpu: " << status.message << "\n";
  return status.ok() ? 0 : 1;
}
