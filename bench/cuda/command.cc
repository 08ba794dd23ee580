// sluice_bench_cuda: times Sluice's kernels and baselines' kernels on this machine's GPU.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>

#include "backends/cuda/device.h"
#include "cuda/command.h"
#include "cuda/suites.h"
#include "report/panels.h"

namespace sluice::bench {
namespace {

namespace fs = std::filesystem;

constexpr const char* kUsage = R"(usage: sluice_bench_cuda [OPTIONS]

Times Sluice's kernels on this machine's GPU, and the kernels of the libraries in --peers.

  --suite LIST      comma-separated: router, fused, routing, chain, lora, linear, attention, latent, sample, mxfp4, bf16, formats,
                    fp8, expert_lora, group, gaps, expert_configs (default: all but these five). expert_lora: layers with adapters
                    on their experts. group: the sum over ranks, on all GPUs of the machine. gaps: the cost of a launch before
                    each MoE layer. Rows of fused go to router.csv, rows of chain to routing.csv.
  --models LIST     only these shapes, named as in the rows: 2880x128,256x8-deepseek_v3,gpt-oss-120b
                    Held-out shapes, which no cost model was fitted to, run only if named here: held-out-3072x1536 and
                    held-out-5120x1024 in mxfp4, held-out-3584x1280 and held-out-5120x640 in bf16
  --tokens LIST     token counts from 1 to 16384 (default: powers of two, and a few more in some suites)
  --peers DIR       folder of other libraries to time, peer_*.so (bench/peers/build makes them)
  --out DIR         folder for the rows (default: the current folder), one CSV file for each suite;
                    router, routing, lora, linear, attention, latent, sample also write *_candidates.csv (each kernel,
                    forced); mxfp4, bf16 also *_power.csv (power and clock)
  --regret          times every configuration of the expert GEMMs and writes expert_configs.csv. sluice_fit_costs fits the
                    cost models to these rows; tests/cuda/regret_test.cc compares the choices of dispatch with them
  --quick           11 replays instead of 21, rotating weights of twice the L2 cache instead of three times, no candidates
  --replays N       replays of each kernel, from 5 to 1000 (default: 21)
  --seconds N       time limit of each suite, divided over its shapes; token counts that were skipped are listed
  --expert-ids DIR  writes the chosen experts of mxfp4 and bf16, for other libraries in another process: MODEL_ROUTING.i32,
                    ids of 8 routing samples, -1 for an expert on another GPU. --draws is an alias
  --routing LIST    uniform, zipf or both (default: both), in mxfp4 and bf16
  --pace LIST       burst, sustained or both (default: both), in mxfp4 and bf16. Burst: at most 5 ms of work after 10 ms of
                    rest. Sustained: a rest, then 300 ms without pauses, of which the second half is timed
  --peer-ops LIST   moe_layer, expert_gemms or both (default: both), in mxfp4 and bf16: operations that other libraries also run
)";

struct Suite {
  std::string name;
  Status (Bench::*run)();
};
const Suite kSuites[] = {{"router", &Bench::router},
                         {"fused", &Bench::fused},
                         {"routing", &Bench::routing},
                         {"chain", &Bench::chain},
                         {"lora", &Bench::lora},
                         {"linear", &Bench::linear},
                         {"attention", &Bench::attention},
                         {"latent", &Bench::latent},
                         {"sample", &Bench::sample},
                         {"mxfp4", &Bench::mxfp4},
                         {"formats", &Bench::formats},
                         {"bf16", &Bench::bf16},
                         {"fp8", &Bench::fp8},
                         {"expert_lora", &Bench::expert_lora},
                         {"group", &Bench::group},
                         {"gaps", &Bench::gaps},
                         {"expert_configs", &Bench::configs}};

struct Options {
  std::vector<const Suite*> suites;
  Bench::Options bench;
  fs::path peers, out = ".";
};

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> out;
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');) out.push_back(word);
  return out;
}

Status parse_suites(const std::string& list, std::vector<const Suite*>* out) {
  out->clear();
  for (const std::string& name : split(list)) {
    const Suite* found = nullptr;
    std::string all;
    for (const Suite& suite : kSuites) {
      if (suite.name == name) found = &suite;
      all += (all.empty() ? "" : &suite == std::end(kSuites) - 1 ? " or " : ", ") + suite.name;
    }
    if (!found) return invalid("--suite: wanted " + all + ", found '" + name + "'");
    out->push_back(found);
  }
  return out->empty() ? invalid("--suite: wanted a suite, found none") : Status{};
}

Status parse_count(const std::string& option, const std::string& word, int64_t minimum, int64_t maximum,
                   int64_t* out) {
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), *out);
  if (error == std::errc() && end == word.data() + word.size() && *out >= minimum && *out <= maximum)
    return {};
  return invalid(option + ": wanted a count from " + std::to_string(minimum) + " to " +
                 std::to_string(maximum) + ", found '" + word + "'");
}

Status parse_tokens(const std::string& list, std::vector<int64_t>* out) {
  out->clear();
  for (const std::string& word : split(list))
    SLUICE_TRY(parse_count("--tokens", word, 1, 16384, &out->emplace_back()));
  return out->empty() ? invalid("--tokens: wanted counts from 1 to 16384, found none") : Status{};
}

Status parse_pace(const std::string& list, Pace* out) {
  out->burst = out->sustained = false;
  for (const std::string& word : split(list)) {
    if (word != "burst" && word != "sustained")
      return invalid("--pace: wanted burst or sustained, found '" + word + "'");
    (word == "burst" ? out->burst : out->sustained) = true;
  }
  return out->burst || out->sustained ? Status{} : invalid("--pace: wanted burst or sustained, found none");
}

Status parse_routing(const std::string& list, std::vector<Spread>* out) {
  out->clear();
  for (const std::string& word : split(list)) {
    if (word != "uniform" && word != "zipf")
      return invalid("--routing: wanted uniform or zipf, found '" + word + "'");
    out->push_back(word == "zipf" ? Spread::kZipf : Spread::kUniform);
  }
  return out->empty() ? invalid("--routing: wanted uniform or zipf, found none") : Status{};
}

Status parse_peer_ops(const std::string& list, std::vector<std::string>* out) {
  *out = split(list);
  for (const std::string& word : *out)
    if (word != "moe_layer" && word != "expert_gemms")
      return invalid("--peer-ops: wanted moe_layer or expert_gemms, found '" + word + "'");
  return out->empty() ? invalid("--peer-ops: wanted moe_layer or expert_gemms, found none") : Status{};
}

Result<Options> parse(int argc, char** argv) {
  Options o;
  for (const Suite& suite : kSuites)
    if (suite.run != &Bench::configs && suite.run != &Bench::gaps && suite.run != &Bench::group &&
        suite.run != &Bench::fp8 && suite.run != &Bench::expert_lora)
      o.suites.push_back(&suite);
  for (int i = 1; i < argc; ++i) {
    const std::string word = std::string_view(argv[i]) == "--draws" ? "--expert-ids" : argv[i];
    if (word == "--regret") {
      SLUICE_TRY(parse_suites("expert_configs", &o.suites));
      o.bench.pace = {.burst = true, .sustained = false, .burst_us = 2500, .pause_us = 3000};
      o.bench.replays = 5;
      o.bench.cold_bytes = kQuickColdBytes;
      continue;
    }
    if (word == "--quick") {
      o.bench.replays = 11;
      o.bench.cold_bytes = kQuickColdBytes;
      o.bench.candidates = false;
      continue;
    }
    const char* const known[] = {"--suite",      "--models",  "--tokens",  "--peers",
                                 "--out",        "--replays", "--seconds", "--pace",
                                 "--expert-ids", "--routing", "--peer-ops"};
    if (std::find(std::begin(known), std::end(known), word) == std::end(known))
      return invalid(
          "wanted one of --suite, --regret, --models, --tokens, --peers, --out, --quick, --replays, "
          "--seconds, --pace, "
          "--routing, --expert-ids, --peer-ops, found '" +
          word + "'");
    if (++i == argc) return invalid(word + ": wanted a value, found none");
    const std::string value = argv[i];
    if (word == "--suite") {
      SLUICE_TRY(parse_suites(value, &o.suites));
    } else if (word == "--models") {
      o.bench.models = split(value);
    } else if (word == "--tokens") {
      SLUICE_TRY(parse_tokens(value, &o.bench.tokens));
    } else if (word == "--replays") {
      int64_t n = 0;
      SLUICE_TRY(parse_count(word, value, 5, 1000, &n));
      o.bench.replays = static_cast<int>(n);
    } else if (word == "--seconds") {
      int64_t n = 0;
      SLUICE_TRY(parse_count(word, value, 1, 86400, &n));
      o.bench.seconds = static_cast<double>(n);
    } else if (word == "--expert-ids") {
      o.bench.draws = value;
    } else if (word == "--routing") {
      SLUICE_TRY(parse_routing(value, &o.bench.spreads));
    } else if (word == "--pace") {
      SLUICE_TRY(parse_pace(value, &o.bench.pace));
    } else if (word == "--peer-ops") {
      SLUICE_TRY(parse_peer_ops(value, &o.bench.peer_ops));
    } else {
      (word == "--peers" ? o.peers : o.out) = value;
    }
  }
  return o;
}

// Writes each row to its file immediately, so that a fault loses only later rows.
class Files {
 public:
  explicit Files(fs::path folder) : folder_(std::move(folder)) {}

  Status add(const Outcome& outcome) {
    const Row& row = outcome.row;
    std::ofstream& file = files_[row.suite + (outcome.who == Who::kCandidate ? "_candidates" : "") + ".csv"];
    if (!file.is_open()) {
      const fs::path path =
          folder_ / (row.suite + (outcome.who == Who::kCandidate ? "_candidates" : "") + ".csv");
      file.open(path, std::ios::binary);
      file << kCsvHeader << "\n";
    }
    const Result<std::string> line = csv_line(row);
    if (!line.ok()) return line.status();
    file << line.value() << std::flush;
    if (!file) return Status{Code::kIo, "could not write rows to " + folder_.string()};
    return outcome.power.samples > 0 ? add_power(outcome) : Status{};
  }

 private:
  // Writes the mean power and clock while the row was measured.
  Status add_power(const Outcome& outcome) {
    const Row& row = outcome.row;
    std::ofstream& file = files_[row.suite + "_power.csv"];
    if (!file.is_open()) {
      file.open(folder_ / (row.suite + "_power.csv"), std::ios::binary);
      file << "op,model,tokens,impl,note,power_w,sm_clock_mhz,samples\n";
    }
    char numbers[96];
    std::snprintf(numbers, sizeof numbers, "%.0f,%.0f,%lld", outcome.power.watts, outcome.power.sm_mhz,
                  static_cast<long long>(outcome.power.samples));
    file << row.op << ',' << row.model << ',' << row.tokens << ',' << row.impl << ',' << row.note << ','
         << numbers << '\n'
         << std::flush;
    return file ? Status{} : Status{Code::kIo, "could not write rows to " + folder_.string()};
  }

  fs::path folder_;
  std::map<std::string, std::ofstream> files_;
};

// Prints one line: Sluice, its fastest kernel, the fastest baseline, and the ratio.
void print(const std::vector<Outcome>& outcomes) {
  if (outcomes.empty()) return;
  const Outcome *sluice = nullptr, *candidate = nullptr, *peer = nullptr;
  const auto faster = [](const Outcome* a, const Outcome& b) {
    return !a || b.row.median_us < a->row.median_us;
  };
  for (const Outcome& o : outcomes) {
    if (o.row.impl == "sluice") sluice = &o;
    if (o.who == Who::kCandidate && faster(candidate, o)) candidate = &o;
    if (o.who == Who::kPeer && faster(peer, o)) peer = &o;
  }
  const Row& r = outcomes.front().row;
  std::printf("%-18s %-22s %-17s %5lld  floor %6.2f", r.op.c_str(), r.model.c_str(), r.note.c_str(),
              static_cast<long long>(r.tokens), floor_us(r.bytes, r.flops));
  if (sluice) std::printf("  sluice %7.2f", sluice->row.median_us);
  if (candidate) std::printf("  best %7.2f %s", candidate->row.median_us, candidate->row.impl.c_str());
  if (peer) std::printf("  baseline %7.2f %s", peer->row.median_us, peer->row.impl.c_str());
  if (peer && sluice) std::printf("  ratio %.2f", peer->row.median_us / sluice->row.median_us);
  std::printf("\n");
}

Status run(const Options& o) {
  auto opened = cuda::open_device({});
  if (!opened.ok()) return opened.status();
  Device& device = *opened.value();
  const auto peers = Peers::load(o.peers);
  if (!peers.ok()) return peers.status();
  std::error_code error;
  for (const fs::path& folder : {o.out, o.bench.draws}) {
    if (!folder.empty()) fs::create_directories(folder, error);
    if (error) return {Code::kIo, "could not create the folder " + folder.string() + ": " + error.message()};
  }
  const auto ceilings = measure_ceilings(device);
  if (!ceilings.ok()) return ceilings.status();
  std::printf("device   %s\nlaunch   %.2f us, dependent %.2f us (an empty kernel in a captured graph)\n",
              text(device.info()).c_str(), ceilings.value().launch_us, ceilings.value().dependent_launch_us);
  std::printf("memory   reads %.2f TB/s\n", 1e-6 * ceilings.value().read_bytes_per_us);
  for (const sluice_peer* peer : peers.value().all())
    std::printf("baseline %s (%s)\n", peer->name, peer->version);
  for (const sluice_layer_peer* peer : peers.value().layers())
    std::printf("baseline %s (%s), whole layers\n", peer->name, peer->version);
  for (const sluice_attention_peer* peer : peers.value().attention())
    std::printf("baseline %s (%s), attention\n", peer->name, peer->version);
  for (const sluice_latent_peer* peer : peers.value().latent())
    std::printf("baseline %s (%s), latent attention\n", peer->name, peer->version);
  Files files(o.out);
  int64_t rows = 0;
  Bench bench(
      device, peers.value(), o.bench,
      [&](const std::vector<Outcome>& outcomes, const std::vector<std::string>& complaints) -> Status {
        for (const std::string& complaint : complaints) std::printf("!! %s\n", complaint.c_str());
        print(outcomes);
        std::fflush(stdout);
        for (const Outcome& outcome : outcomes) SLUICE_TRY(files.add(outcome));
        rows += static_cast<int64_t>(outcomes.size());
        return {};
      });
  for (const Suite* suite : o.suites) {
    bench.start(suite->name);
    SLUICE_TRY((bench.*suite->run)());
    SLUICE_TRY(bench.finish());
  }
  return rows > 0 ? Status{}
                  : unsupported(
                        "nothing to measure: no selected suite has the requested models and tokens; see the "
                        "lines above");
}

}  // namespace

int command_main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i)
    if (std::string_view(argv[i]) == "--help" || std::string_view(argv[i]) == "-h")
      return std::fputs(kUsage, stdout), 0;
  const Result<Options> options = parse(argc, argv);
  if (!options.ok()) {
    std::fprintf(stderr, "sluice_bench_cuda: %s\n", options.status().message.c_str());
    return 2;
  }
  const Status status = run(options.value());
  if (!status.ok()) std::fprintf(stderr, "sluice_bench_cuda: %s\n", status.message.c_str());
  return status.ok() ? 0 : 1;
}

}  // namespace sluice::bench
