#include <cstdio>

#include "apps/bench/bench_model.h"
#include "apps/bench/bench_report.h"

namespace sluice::apps {
namespace {

void print_report(const BenchReport& r) {
  std::printf("model    %s\ndevice   %s\n", r.model.c_str(), r.device.c_str());
  std::printf("weights  %.2f GB, %.2f GB read per token; loaded in %.1f s\n",
              1e-9 * static_cast<double>(r.weight_bytes), 1e-9 * static_cast<double>(r.active_bytes),
              r.load_seconds);
  std::printf("memory   reads %.1f GB/s, which allows at most %.1f tokens/s\n\n", 1e-3 * r.read_bytes_per_us,
              1e6 * r.read_bytes_per_us / static_cast<double>(r.active_bytes));
  // The column "experts" has the number of distinct experts that a step's tokens choose, averaged over the layers. "GB" has the bytes that a step
  // must read, with only the chosen experts. "of the floor" has the roofline time divided by the measured time.
  std::printf("%-8s %9s %8s %10s %14s %12s %10s %10s %10s %12s %8s %8s %12s\n", "", "sequences", "context",
              "pace", "first token ms", "prompt tok/s", "step ms", "p10", "p90", "tokens/s", "experts", "GB",
              "of the floor");
  for (const BenchRow& b : r.rows)
    std::printf("%-8s %9lld %8lld %10s %14.1f %12.1f %10.3f %10.3f %10.3f %12.1f %8.1f %8.2f %12.2f\n",
                b.op.c_str(), static_cast<long long>(b.sequences), static_cast<long long>(b.context),
                b.pace.empty() ? "-" : b.pace.c_str(), b.first_token_ms, b.prompt_tokens_per_s, b.step_ms,
                b.step_ms_p10, b.step_ms_p90, b.tokens_per_s, b.experts, 1e-9 * b.floor.bytes(),
                b.share_of_floor);
}

}  // namespace

int bench_command(const BenchOptions& options, Format format) {
  const auto report = bench_model(options);
  if (!report.ok()) return wrong_use(report.status().message);
  if (format == Format::kJson) {
    const std::string json = bench_json(report.value());
    std::fwrite(json.data(), 1, json.size(), stdout);
  } else {
    print_report(report.value());
  }
  return kExitOk;
}

int bench_report_command(const ReportOptions& options) {
  const auto written = write_report(options);
  if (!written.ok()) return wrong_use(written.status().message);
  for (const auto& path : written.value()) std::printf("%s\n", path.c_str());
  return kExitOk;
}

}  // namespace sluice::apps
