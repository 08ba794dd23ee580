// sluice_fit_costs ROWS [OUT]: fits the constants of the experts' cost models (src/backends/cuda/experts/cost.h) to measured rows of
// all configurations, and writes src/backends/cuda/measured/expert_costs.inc. The model is the product's own. Prints how far the
// resulting choice is from the best configuration of each problem.
//
// The loss is the error of the logarithm of each row's time, weighted towards those near the best of their problem, since only
// their order matters. Coordinate descent: each constant in turn moves by a step up or down; steps halve if neither helps.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>

#include "backends/cuda/device.h"
#include "backends/cuda/experts/cost.h"
#include "dispatch/explain.h"
#include "report/expert_shape.h"
#include "report/results.h"

namespace sluice::bench {
namespace {

using cuda::StreamConstants;
using cuda::TileConstants;

struct Constants {
  TileConstants tile[2];
  StreamConstants stream[2];
};

// One row: a configuration of a problem, and its time.
struct Sample {
  size_t problem;
  std::string config;
  bool tile = false;
  std::vector<cuda::TileLaunch> tiles = {};
  cuda::StreamLaunch stream = {};
  double us = 0, weight = 1;
};
// One group of rows: one GEMM of a shape at one token count under one routing.
struct Group {
  ExpertGemm::Problem problem;
  cuda::RowProfile rows, uniform, zipf;  // rows: as measured
  std::string name;
  bool held_out = false;
  std::vector<size_t> samples = {};
};

struct Data {
  std::vector<Group> groups;
  std::vector<Sample> samples;
  DeviceInfo device = known_device("h200").value();
};

double predicted(const Data& data, const Constants& c, const Sample& s) {
  const Group& g = data.groups[s.problem];
  const size_t w = g.problem.w == DType::kE2M1 ? 0 : 1;
  return s.tile ? cuda::tile_us(c.tile[w], g.problem, data.device, g.rows, s.tiles)
                : cuda::stream_us(c.stream[w], g.problem, data.device, g.rows, s.stream);
}

double loss(const Data& data, const Constants& c, DType w) {
  double sum = 0, weights = 0;
  for (const Sample& s : data.samples) {
    const Group& g = data.groups[s.problem];
    if (g.problem.w != w || g.held_out) continue;
    const double error = std::log(predicted(data, c, s) / s.us);
    sum += s.weight * error * error, weights += s.weight;
  }
  return sum / weights;
}

Status read_rows(const char* path, Data* data) {
  std::ifstream file(path);
  if (!file) return {Code::kIo, "wanted rows in " + std::string(path) + ", found no such file"};
  std::stringstream text;
  text << file.rdbuf();
  const auto rows = parse_csv(text.str(), path, "expert_configs");
  if (!rows.ok()) return rows.status();
  std::map<std::string, size_t> known;
  for (const Row& row : rows.value()) {
    const bool up = row.op == "expert_gemm_up";
    const std::string name = row.op + " " + row.model + " " + std::to_string(row.tokens) + " " + row.note;
    auto [at, fresh] = known.emplace(name, data->groups.size());
    if (fresh) {
      const Result<ExpertMlp::Problem> shape = expert_shape(row.model);
      if (!shape.ok()) return shape.status();
      const ExpertMlp::Problem mlp = ExpertMlp::at_tokens(shape.value(), row.tokens);
      Group group{.problem = up ? ExpertMlp::up(mlp) : ExpertMlp::down(mlp),
                  .rows = {},
                  .uniform = {},
                  .zipf = {},
                  .name = name};
      group.held_out = row.note.find("held-out") != std::string::npos;
      group.uniform = cuda::uniform_profile(group.problem), group.zipf = cuda::zipf_profile(group.problem);
      group.rows = row.note.find("zipf") == std::string::npos ? group.uniform : group.zipf;
      data->groups.push_back(std::move(group));
    }
    Group& group = data->groups[at->second];
    const size_t colon = row.impl.find(':');
    const std::string candidate = row.impl.substr(0, colon), config = row.impl.substr(colon + 1);
    for (const Candidate<ExpertGemm>* c : cuda::catalog().table<ExpertGemm>()) {
      if (c->name != candidate) continue;
      for (const Config& one : configs_of(*c, group.problem, data->device)) {
        if (one.name != config) continue;
        Sample s{.problem = at->second,
                 .config = config,
                 .tile = candidate.find("_tile_") != std::string::npos,
                 .us = row.median_us};
        if (s.tile) s.us += cuda::tile_in_layer_us(group.problem);
        for (const KernelLaunch& launch : one.launches) s.tiles.push_back(cuda::TileLaunch::of(launch));
        s.stream = cuda::StreamLaunch::of(one.launches[0]);
        group.samples.push_back(data->samples.size());
        data->samples.push_back(std::move(s));
      }
    }
  }
  constexpr double kNear = 8;
  for (const Group& g : data->groups) {
    double best = 1e30;
    for (const size_t i : g.samples) best = std::min(best, data->samples[i].us);
    for (const size_t i : g.samples) data->samples[i].weight = std::pow(best / data->samples[i].us, kNear);
  }
  return {};
}

// Not settled_us: rows are of a GEMM alone, whose groups nothing settles early. It comes from whole layers.
std::vector<double*> free_constants(Constants* c, DType w) {
  const size_t at = w == DType::kE2M1 ? 0 : 1;
  TileConstants& t = c->tile[at];
  StreamConstants& s = c->stream[at];
  std::vector<double*> out;
  for (double& ns : t.fragment_ns) out.push_back(&ns);
  for (size_t k = 1; k < cuda::tile_kernels(w).size(); ++k) out.push_back(&t.pace[k]);  // the first is 1
  for (size_t k = 0; k < cuda::tile_kernels(w).size(); ++k) out.push_back(&t.memory_share[k]);
  for (double* one :
       {&t.start_us, &t.by_position_us, &t.follow_us, &t.end_us, &t.end_row_us, &t.blend, &t.partial,
        &t.short_us, &t.last_round, &t.order_us, &t.order_bytes_per_us, &t.gather_bytes_per_us})
    out.push_back(one);
  for (double* one : {&s.start_us, &s.by_position_us, &s.memory_share, &s.short_unit_us, &s.short_block_us[0],
                      &s.short_block_us[1]})
    out.push_back(one);
  if (w == DType::kE2M1)
    for (double* one : {&s.unit_us, &s.row_us, &s.block_us[0], &s.block_us[1]}) out.push_back(one);
  else
    for (double* one : {&s.block_us[0], &s.small}) out.push_back(one);
  return out;
}

// The cost that decide() compares for a sample: uniform routing and some Zipf, whatever the rows' routing.
double cost_of(const Data& data, const Constants& c, const Sample& s) {
  const Group& g = data.groups[s.problem];
  const size_t w = g.problem.w == DType::kE2M1 ? 0 : 1;
  const double skew = s.tile ? c.tile[w].skew : c.stream[w].skew;
  const auto us = [&](const cuda::RowProfile& rows) {
    return s.tile ? cuda::tile_us(c.tile[w], g.problem, data.device, rows, s.tiles)
                  : cuda::stream_us(c.stream[w], g.problem, data.device, rows, s.stream);
  };
  return (1 - skew) * us(g.uniform) + skew * us(g.zipf);
}

struct Choice {
  const Sample *best = nullptr, *chosen = nullptr;
  double regret() const { return chosen->us / best->us; }
};
Choice choice_of(const Data& data, const Constants& c, const Group& g) {
  Choice out;
  double least = 0;
  for (const size_t i : g.samples) {
    const Sample& s = data.samples[i];
    if (!out.best || s.us < out.best->us) out.best = &s;
    if (const double us = cost_of(data, c, s); !out.chosen || us < least) least = us, out.chosen = &s;
  }
  return out;
}

// The mean regret of the choices, with more weight above a twentieth, plus some of the error in times, so that costs remain times.
double regret_loss(const Data& data, const Constants& c, DType w) {
  constexpr double kBeyond = 0.05, kBeyondWeight = 2, kTimes = 0.1;
  double sum = 0;
  int groups = 0;
  for (const Group& g : data.groups) {
    if (g.problem.w != w || g.held_out) continue;
    const double lost = std::log(choice_of(data, c, g).regret());
    sum += lost + kBeyondWeight * std::max(0.0, lost - kBeyond), ++groups;
  }
  return sum / groups + kTimes * loss(data, c, w);
}

template <class Loss>
void descend(const Data& data, Constants* c, DType w, int rounds, double first_step, Loss loss) {
  const std::vector<double*> constants = free_constants(c, w);
  std::vector<double> step(constants.size(), first_step);
  double least = loss(data, *c, w);
  for (int round = 0; round < rounds; ++round)
    for (size_t i = 0; i < constants.size(); ++i) {
      const double before = *constants[i];
      bool better = false;
      for (const double factor : {1 + step[i], 1 / (1 + step[i])}) {
        *constants[i] = before * factor;
        const double now = loss(data, *c, w);
        if (now < least) {
          least = now, better = true;
          break;
        }
        *constants[i] = before;
      }
      step[i] = better ? std::min(0.3, step[i] * 1.5) : std::max(1e-3, step[i] / 2);
    }
}

void fit(const Data& data, Constants* c, DType w) {
  descend(data, c, w, 40, 0.08, loss);
  descend(data, c, w, 30, 0.05, regret_loss);
  std::printf("%s: root of the mean square of the logarithms' errors, near the best: %.3f\n",
              std::string(text(w)).c_str(), std::sqrt(loss(data, *c, w)));
}

void print_regret(const Data& data, const Constants& c) {
  struct Sum {
    double logs = 0, worst = 1;
    int count = 0, beyond = 0;
    std::string where;
  };
  std::map<std::string, Sum> sums;
  for (const Group& g : data.groups) {
    const auto [best, chosen] = choice_of(data, c, g);
    const double regret = chosen->us / best->us;
    for (const std::string& key :
         {std::string(text(g.problem.w)) + (g.held_out ? " held out" : ""),
          std::string(g.name.find("zipf") == std::string::npos ? "uniform" : "zipf")}) {
      Sum& sum = sums[key];
      sum.logs += std::log(regret), ++sum.count;
      if (regret > 1.05) ++sum.beyond;
      if (regret > sum.worst) sum.worst = regret, sum.where = g.name;
    }
    if (regret > 1.05)
      std::printf("  %.3f at %s: %s took %.1f (%.1f by the model), %s %.1f (%.1f)\n", regret, g.name.c_str(),
                  chosen->config.c_str(), chosen->us, predicted(data, c, *chosen), best->config.c_str(),
                  best->us, predicted(data, c, *best));
  }
  for (const auto& [key, s] : sums)
    std::printf("regret %-16s %4d problems, mean %.4f, %d beyond 1.05, worst %.3f at %s\n", key.c_str(),
                s.count, std::exp(s.logs / s.count), s.beyond, s.worst, s.where.c_str());
}

template <class List>
std::string list(const List& values, size_t count) {
  std::string out = "{";
  char one[32];
  for (size_t i = 0; i < count; ++i) {
    std::snprintf(one, sizeof one, "%s%.4g", i ? ", " : "", values[i]);
    out += one;
  }
  return out + "}";
}

std::string field(const char* name, double value) {
  char line[96];
  std::snprintf(line, sizeof line, "    .%s = %.4g,\n", name, value);
  return line;
}

std::string written(const Constants& c) {
  std::string out = "// Written by sluice_fit_costs from bench/measured/h200/expert_configs.csv.\n";
  for (const DType w : {DType::kE2M1, DType::kBF16}) {
    const TileConstants& t = c.tile[w == DType::kE2M1 ? 0 : 1];
    const StreamConstants& s = c.stream[w == DType::kE2M1 ? 0 : 1];
    const std::string name = w == DType::kE2M1 ? "Mxfp4" : "Bf16";
    out += "constexpr TileConstants k" + name +
           "TileConstants = {\n    .columns = " + list(t.columns, t.columns.size()) +
           ",\n    .fragment_ns = " + list(t.fragment_ns, t.fragment_ns.size()) +
           ",\n    .pace = " + list(t.pace, cuda::tile_kernels(w).size()) + ",\n";
    out += field("start_us", t.start_us) + field("settled_us", t.settled_us) +
           field("by_position_us", t.by_position_us) + field("follow_us", t.follow_us) +
           field("end_us", t.end_us) + field("end_row_us", t.end_row_us) + field("blend", t.blend) +
           field("short_us", t.short_us) + field("last_round", t.last_round) +
           "    .memory_share = " + list(t.memory_share, cuda::tile_kernels(w).size()) + ",\n" +
           field("partial", t.partial) + field("order_us", t.order_us) +
           field("order_bytes_per_us", t.order_bytes_per_us) +
           field("gather_bytes_per_us", t.gather_bytes_per_us) +
           "    .in_layer_us = " + list(t.in_layer_us, 2) + ",\n" + field("skew", t.skew) + "};\n";
    out += "constexpr StreamConstants k" + name + "StreamConstants = {\n" + field("start_us", s.start_us) +
           field("settled_us", s.settled_us) + field("by_position_us", s.by_position_us) +
           field("memory_share", s.memory_share) + field("unit_us", s.unit_us) + field("row_us", s.row_us) +
           "    .block_us = " + list(s.block_us, 2) + ",\n" + field("short_unit_us", s.short_unit_us) +
           "    .short_block_us = " + list(s.short_block_us, 2) + ",\n" + field("small", s.small) +
           field("skew", s.skew) + "};\n";
  }
  return out;
}

int main_of(int argc, char** argv) {
  if (argc < 2 || argc > 3) return std::fputs("usage: sluice_fit_costs ROWS.csv [OUT.inc]\n", stderr), 2;
  Data data;
  if (const Status status = read_rows(argv[1], &data); !status.ok())
    return std::fprintf(stderr, "sluice_fit_costs: %s\n", status.message.c_str()), 1;
  Constants c{{cuda::tile_constants(DType::kE2M1), cuda::tile_constants(DType::kBF16)},
              {cuda::stream_constants(DType::kE2M1), cuda::stream_constants(DType::kBF16)}};
  std::printf("%zu rows of %zu problems; as it is:\n", data.samples.size(), data.groups.size());
  print_regret(data, c);
  if (argc < 3) return 0;
  for (const DType w : {DType::kE2M1, DType::kBF16}) fit(data, &c, w);
  print_regret(data, c);
  std::ofstream out(argv[2]);
  out << written(c);
  return out.flush() ? 0 : 1;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) { return sluice::bench::main_of(argc, argv); }
