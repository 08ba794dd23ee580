// sluice_bench_cuda: Sluice's kernels on this machine's GPU, beside those of others.
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>

#include "backends/cuda/device.h"
#include "cuda/suites.h"
#include "report/panels.h"

namespace sluice::bench {
namespace {

namespace fs = std::filesystem;

constexpr const char* kUsage = R"(usage: sluice_bench_cuda [OPTIONS]

  --suite LIST      of router, routing, chain, parted by commas; all of them if it is not given. Rows of chain stand in
                    routing.csv
  --models LIST     only these, as rows name them: 2880x128,256x8-deepseek_v3
  --tokens LIST     counts from 1 to 16384; 18 of them from 1 to 16384 if it is not given
  --peers DIR       a folder of peer_*.so: see bench/peers/peer.h
  --out DIR         gets router.csv, router_candidates.csv, routing.csv, routing_candidates.csv
  --quick           5 replays in place of 21
)";

struct Options {
  std::vector<std::string> suites = {"router", "routing", "chain"};
  Bench::Options bench;
  fs::path peers, out = ".";
};

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> out;
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');) out.push_back(word);
  return out;
}

Status parse_tokens(const std::string& list, std::vector<int64_t>* out) {
  out->clear();
  for (const std::string& word : split(list)) {
    int64_t n = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), n);
    if (error != std::errc() || end != word.data() + word.size() || n < 1 || n > 16384)
      return invalid("--tokens: wanted counts from 1 to 16384, found '" + word + "'");
    out->push_back(n);
  }
  return out->empty() ? invalid("--tokens: wanted counts from 1 to 16384, found none") : Status{};
}

Result<Options> parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--quick") {
      o.bench.replays = 5;
      continue;
    }
    if (word != "--suite" && word != "--models" && word != "--tokens" && word != "--peers" && word != "--out")
      return invalid("wanted one of --suite, --models, --tokens, --peers, --out, --quick, found '" + word +
                     "'");
    if (++i == argc) return invalid(word + ": wanted a value, found none");
    const std::string value = argv[i];
    if (word == "--suite") {
      o.suites = split(value);
      for (const std::string& s : o.suites)
        if (s != "router" && s != "routing" && s != "chain")
          return invalid("--suite: wanted router, routing or chain, found '" + s + "'");
    } else if (word == "--models") {
      o.bench.models = split(value);
    } else if (word == "--tokens") {
      SLUICE_TRY(parse_tokens(value, &o.bench.tokens));
    } else {
      (word == "--peers" ? o.peers : o.out) = value;
    }
  }
  return o;
}

// Rows go to files as they come, so that a fault costs only what is behind it.
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
    return file ? Status{} : Status{Code::kIo, "could not write rows to " + folder_.string()};
  }

 private:
  fs::path folder_;
  std::map<std::string, std::ofstream> files_;
};

// One line: who won, and by how much.
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
  std::printf("%-18s %-22s %-12s %5lld  floor %6.2f", r.op.c_str(), r.model.c_str(), r.note.c_str(),
              static_cast<long long>(r.tokens), floor_us(r.bytes, r.flops));
  if (sluice) std::printf("  sluice %7.2f", sluice->row.median_us);
  if (candidate) std::printf("  best %7.2f %s", candidate->row.median_us, candidate->row.impl.c_str());
  if (peer) std::printf("  peer %7.2f %s", peer->row.median_us, peer->row.impl.c_str());
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
  fs::create_directories(o.out, error);
  if (error) return {Code::kIo, "--out: wanted a folder " + o.out.string() + ", found: " + error.message()};
  const auto ceilings = measure_ceilings(device);
  if (!ceilings.ok()) return ceilings.status();
  std::printf("device   %s\nlaunch   %.2f us, dependent %.2f us (an empty kernel in a recording)\n",
              text(device.info()).c_str(), ceilings.value().launch_us, ceilings.value().dependent_launch_us);
  std::printf("memory   reads %.2f TB/s\n", 1e-6 * ceilings.value().read_bytes_per_us);
  for (const sluice_peer* peer : peers.value().all())
    std::printf("peer     %s (%s)\n", peer->name, peer->version);
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
  for (const std::string& suite : o.suites) {
    if (suite == "router") {
      SLUICE_TRY(bench.router());
      SLUICE_TRY(bench.fused());
    } else if (suite == "routing") {
      SLUICE_TRY(bench.routing());
    } else {
      SLUICE_TRY(bench.chain());
    }
  }
  return rows > 0 ? Status{}
                  : unsupported("wanted something to measure, found none: see --models, and the lines above");
}

int main_of(int argc, char** argv) {
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

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) { return sluice::bench::main_of(argc, argv); }
