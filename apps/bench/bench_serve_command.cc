#include "apps/bench/bench_serve_command.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>

#include "apps/common/ask_server.h"
#include "apps/common/commands.h"
#include "apps/common/descriptors.h"
#include "base/printable.h"

namespace sluice::apps {
namespace {

constexpr size_t kReasonsShown = 10;

// Checks output paths early, because a run may take hours.
Status check_files(const ServeBenchOptions& options, const ServeBenchFiles& files) {
  namespace fs = std::filesystem;
  if (!files.save_result && !files.result_dir.empty())
    return invalid("--result-dir: needs --save-result, found none");
  if (!files.save_result && !files.result_filename.empty())
    return invalid("--result-filename: needs --save-result, found none");
  if (!files.save_result && files.output_json.empty() && files.detail == Detail::kEachRequest)
    return invalid("--save-detailed: needs --save-result or --output-json, found neither");
  if (!files.output_json.empty()) SLUICE_TRY(can_write("--output-json", files.output_json));
  if (files.save_result && !files.result_dir.empty()) {
    std::error_code error;
    fs::create_directories(files.result_dir, error);
    if (error)
      return {Code::kIo, "--result-dir: cannot make the folder " + files.result_dir + ": " + error.message()};
  }
  if (files.save_result)
    SLUICE_TRY(can_write(
        "--result-dir",
        (fs::path(files.result_dir) / (files.result_filename.empty() ? "result.json" : files.result_filename))
            .string()));
  if (files.svg.empty()) return {};
  const auto bounded = [](int64_t most) { return most > 0; };
  if (std::none_of(options.max_concurrency.begin(), options.max_concurrency.end(), bounded))
    return invalid("--svg: needs --max-concurrency, found none");
  return can_write("--svg", files.svg);
}

void print_reasons(const ServingRun& run) {
  std::map<std::string, int64_t> reasons;
  for (const RequestOutcome& o : run.outcomes)
    if (!o.ok()) ++reasons[o.error];
  size_t shown = 0;
  for (const auto& [reason, count] : reasons)
    if (shown++ < kReasonsShown)
      std::fprintf(stderr, "%lld failed: %s\n", static_cast<long long>(count), printable(reason).c_str());
}

std::string result_name(const ServingRun& run) {
  const std::string rate = run.request_rate > 0 ? number_text(run.request_rate) : "inf";
  const std::string load =
      run.max_concurrency > 0 ? "-concurrency" + std::to_string(run.max_concurrency) : std::string();
  return std::string(text(run.backend)) + "-" + rate + "qps" + load + "-" +
         run.model.substr(run.model.rfind('/') + 1) + "-" + run.date + ".json";
}

Status save_result(const ServingRun& run, const ServeBenchFiles& files) {
  namespace fs = std::filesystem;
  const std::string name = files.result_filename.empty() ? result_name(run) : files.result_filename;
  return write_text((fs::path(files.result_dir) / name).string(), serving_json({run}, files.detail));
}

Status write_files(const std::vector<ServingRun>& runs, const ServeBenchFiles& files) {
  if (!files.output_json.empty()) SLUICE_TRY(write_text(files.output_json, serving_json(runs, files.detail)));
  if (files.save_result)
    for (const ServingRun& run : runs) SLUICE_TRY(save_result(run, files));
  if (files.svg.empty()) return {};
  const auto svg = serving_svg(runs);
  if (!svg.ok()) return {svg.status().code, "--svg: " + svg.status().message};
  return write_text(files.svg, svg.value());
}

}  // namespace

int bench_serve_command(const ServeBenchOptions& options, const ServeBenchFiles& files) {
  if (files.save_result && !files.result_filename.empty() && options.max_concurrency.size() > 1)
    return wrong_use("--result-filename: needs one --max-concurrency, found " +
                     std::to_string(options.max_concurrency.size()));
  if (const Status status = check_files(options, files); !status.ok()) return wrong_use(status.message);
  allow_many_descriptors();
  const auto runs = bench_serve(options, counter("requests", files.quiet));
  if (!runs.ok()) return wrong_use(runs.status().message);
  bool measured = true;
  for (const ServingRun& run : runs.value()) {
    print_reasons(run);
    std::fputs(serving_block(run).c_str(), stdout);
    measured = measured && run.measured.completed > 0;
  }
  if (const Status status = write_files(runs.value(), files); !status.ok()) return wrong_use(status.message);
  return measured ? kExitOk
                  : wrong_use("requests: wanted at least one success per run, found a run without one");
}

}  // namespace sluice::apps
