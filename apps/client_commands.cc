#include "apps/client_commands.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "apps/descriptors.h"
#include "apps/progress.h"
#include "base/printable.h"

namespace sluice::apps {
namespace {

constexpr size_t kReasonsShown = 10;

Status write_text(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (out) return {};
  return {Code::kIo, "cannot write " + path + ": " + std::strerror(errno)};
}

// That write_text() could write there, as far as can be told without doing it.
Status can_write(const std::string& flag, const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const auto cannot = [&](const std::string& why) {
    return Status{Code::kIo, flag + ": cannot write " + path + ": " + why};
  };
  if (fs::is_directory(path, error)) return cannot("it is a folder");
  if (fs::exists(path, error))
    return access(path.c_str(), W_OK) == 0 ? Status{} : cannot(std::strerror(errno));
  const fs::path folder = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : fs::path(".");
  if (!fs::is_directory(folder, error)) return cannot("there is no folder " + folder.string());
  return access(folder.c_str(), W_OK | X_OK) == 0 ? Status{} : cannot(std::strerror(errno));
}

// A run may take hours, and its results must have a place.
Status check_files(const ServeBenchOptions& options, const ServeBenchFiles& files) {
  namespace fs = std::filesystem;
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
    return invalid("--svg: wanted a --max-concurrency with it, found none");
  return can_write("--svg", files.svg);
}

// A line that is drawn again with each answer, for people.
std::function<void(int64_t, int64_t)> counter(const char* of, bool quiet) {
  if (quiet || !people_are_watching()) return nullptr;
  return [of](int64_t done, int64_t all) {
    std::fprintf(stderr, "\r%lld of %lld %s\033[K%s", static_cast<long long>(done),
                 static_cast<long long>(all), of, done == all ? "\r\033[K" : "");
  };
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
  return svg.ok() ? write_text(files.svg, svg.value()) : svg.status();
}

}  // namespace

int bench_serve_command(const ServeBenchOptions& options, const ServeBenchFiles& files) {
  if (files.save_result && !files.result_filename.empty() && options.max_concurrency.size() > 1)
    return wrong_use("--result-filename: wanted one --max-concurrency with it, found " +
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
  return measured ? kExitOk : wrong_use("wanted requests that succeed, found none in a run");
}

int eval_server_command(const ServerEvalOptions& options, const ServerEvalFiles& files, Format format) {
  if (!files.output_json.empty())
    if (const Status status = can_write("--output-json", files.output_json); !status.ok())
      return wrong_use(status.message);
  allow_many_descriptors();
  const auto eval = evaluate_server(options, counter("answers", files.quiet));
  if (!eval.ok()) return wrong_use(eval.status().message);
  const std::string json = server_eval_json(eval.value());
  std::fputs((format == Format::kJson ? json : server_eval_text(eval.value())).c_str(), stdout);
  if (!files.output_json.empty())
    if (const Status status = write_text(files.output_json, json); !status.ok())
      return wrong_use(status.message);
  return eval.value().failed == 0 ? kExitOk : kExitNo;
}

int eval_compare_command(const std::string& path_a, const std::string& path_b) {
  const auto comparison = compare_evals(path_a, path_b);
  if (!comparison.ok()) return wrong_use(comparison.status().message);
  std::fputs(comparison_text(comparison.value()).c_str(), stdout);
  return kExitOk;
}

}  // namespace sluice::apps
