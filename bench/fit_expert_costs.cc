// sluice_fit_costs ROWS [OUT]: fits the constants of the experts' cost models (src/backends/cuda/experts/cost/cost.h) to measured rows of
// all configurations, and writes src/backends/cuda/measured/expert_costs.inc. Uses Sluice's own cost model. Prints how far the
// resulting choice is from the best configuration of each problem.
//
// First, least squares of the logarithms of times, weighted towards rows near the best of their problem, because only the order of the best matters.
// Then coordinate descent on the regret of the choices: each constant moves by a step up or down; steps halve if neither helps.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <random>
#include <sstream>

#include "backends/cuda/device.h"
#include "backends/cuda/experts/cost/cost.h"
#include "dispatch/explain.h"
#include "least_squares.h"
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
  std::vector<Sample> unmeasured = {};  // configurations without a row: an earlier cost model ruled them out
};

struct Data {
  std::vector<Group> groups;
  std::vector<Sample> samples;
  DeviceInfo device = known_device("h200").value();
};

double us_of(const Data& data, const Constants& c, const Sample& s, const cuda::RowProfile& rows) {
  const ExpertGemm::Problem& problem = data.groups[s.problem].problem;
  const size_t w = problem.w == DType::kE2M1 ? 0 : 1;
  if (!s.tile) return cuda::stream_us(c.stream[w], problem, data.device, rows, s.stream);
  cuda::TileWorks works(c.tile[w], problem, rows);
  return cuda::tile_us(&works, data.device, s.tiles);
}

double predicted(const Data& data, const Constants& c, const Sample& s) {
  return us_of(data, c, s, data.groups[s.problem].rows);
}

// Under Zipf routing one GPU's share of the rows is large or small by chance, so only the order of such times counts.
bool has_its_level(const Group& g) {
  return g.problem.experts_routed <= g.problem.experts || g.name.find("zipf") == std::string::npos;
}

double loss(const Data& data, const Constants& c, DType w) {
  double sum = 0, weights = 0;
  for (const Group& g : data.groups) {
    if (g.problem.w != w || g.held_out) continue;
    double errors = 0, squares = 0, of_group = 0;
    for (const size_t i : g.samples) {
      const Sample& s = data.samples[i];
      const double error = std::log(predicted(data, c, s) / s.us);
      errors += s.weight * error, squares += s.weight * error * error, of_group += s.weight;
    }
    sum += has_its_level(g) ? squares : squares - errors * errors / of_group, weights += of_group;
  }
  return sum / weights;
}

// All configurations that accept a problem, without times.
std::vector<Sample> listed(const ExpertGemm::Problem& problem, const DeviceInfo& device, size_t group) {
  std::vector<Sample> out;
  for (const Candidate<ExpertGemm>* c : cuda::catalog().table<ExpertGemm>()) {
    const bool tile = c->name.find("_tile_") != std::string::npos;
    if (!tile && c->name.find("_stream_") == std::string::npos) continue;
    if (!c->supports(problem, device).accepted()) continue;
    for (const Config& one : configs_of(*c, problem, device)) {
      if (!one.refusal.accepted()) continue;
      Sample s{.problem = group,
               .config = std::string(c->name) + (one.name.empty() ? "" : ":" + one.name),
               .tile = tile};
      for (const KernelLaunch& launch : one.launches) s.tiles.push_back(cuda::TileLaunch::of(launch));
      s.stream = cuda::StreamLaunch::of(one.launches[0]);
      out.push_back(std::move(s));
    }
  }
  return out;
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
      group.unmeasured = listed(group.problem, data->device, data->groups.size());
      data->groups.push_back(std::move(group));
    }
    Group& group = data->groups[at->second];
    const auto sample = std::find_if(group.unmeasured.begin(), group.unmeasured.end(),
                                     [&](const Sample& one) { return one.config == row.impl; });
    if (sample == group.unmeasured.end()) continue;  // no longer listed
    sample->us = row.median_us + (sample->tile ? cuda::tile_in_layer_us(group.problem) : 0);
    group.samples.push_back(data->samples.size());
    data->samples.push_back(std::move(*sample));
    group.unmeasured.erase(sample);
  }
  return {};
}

// The constants to fit, all but settled_us. That constant was fitted to whole layers: it applies only if the groups were written
// before the previous launch, and these rows time a GEMM alone.
std::vector<double*> free_constants(Constants* c, DType w) {
  const size_t at = w == DType::kE2M1 ? 0 : 1;
  TileConstants& t = c->tile[at];
  StreamConstants& s = c->stream[at];
  std::vector<double*> out;
  for (size_t k = 1; k < cuda::tile_kernels({w}).size(); ++k) out.push_back(&t.pace[k]);  // the first is 1
  for (size_t k = 0; k < cuda::tile_kernels({w}).size(); ++k) out.push_back(&t.memory[k]);
  for (double* one :
       {&t.fragment_ns, &t.fragment_column_ns, &t.column_ns, &t.fill_bytes_per_ns, &t.row_box_ns,
        &t.memory_share, &t.start_us, &t.by_position_us, &t.end_us, &t.end_row_us, &t.short_us, &t.blend,
        &t.tail, &t.partial, &t.order_us, &t.order_bytes_per_us})
    out.push_back(one);
  // No fitted mxfp4 shape is limited by its gather, so the gather's constant stays unchanged.
  if (w == DType::kE2M1)
    out.push_back(&t.follow_us);
  else
    for (double* one : {&t.thread_row_ns, &t.gather_item_us}) out.push_back(one);
  for (double* one : {&s.start_us, &s.by_position_us, &s.memory_share, &s.short_unit_us, &s.short_block_us[0],
                      &s.short_block_us[1]})
    out.push_back(one);
  if (w == DType::kE2M1)
    for (double* one : {&s.unit_us, &s.row_us, &s.block_us[0], &s.block_us[1]}) out.push_back(one);
  else
    for (double* one : {&s.block_us[0], &s.small, &s.lone_bytes_per_us}) out.push_back(one);
  return out;
}

// The cost that decide() compares. It assumes a mixture of uniform and Zipf routing, whatever routing the rows were measured with.
double cost_of(const Data& data, const Constants& c, const Sample& s) {
  const Group& g = data.groups[s.problem];
  const size_t w = g.problem.w == DType::kE2M1 ? 0 : 1;
  const double skew = s.tile ? c.tile[w].skew : c.stream[w].skew;
  return (1 - skew) * us_of(data, c, s, g.uniform) + skew * us_of(data, c, s, g.zipf);
}

// Weights rows by how near the best they are. Drops measured rows that are far slower than the best, and unmeasured configurations that
// the previous constants predict to be far slower.
void weigh(Data* data, const Constants& c) {
  constexpr double kNear = 16, kFar = 1.5, kFarByTheModel = 1.3;
  for (Group& g : data->groups) {
    double best = 1e30, lowest = 1e30;
    for (const size_t i : g.samples) {
      best = std::min(best, data->samples[i].us),
      lowest = std::min(lowest, cost_of(*data, c, data->samples[i]));
    }
    for (const size_t i : g.samples) data->samples[i].weight = std::pow(best / data->samples[i].us, kNear);
    std::erase_if(g.samples, [&](size_t i) { return data->samples[i].us > kFar * best; });
    std::erase_if(g.unmeasured,
                  [&](const Sample& s) { return cost_of(*data, c, s) > kFarByTheModel * lowest; });
  }
}

struct Choice {
  const Sample *best = nullptr, *chosen = nullptr;  // of the measured samples
  const Sample* unmeasured = nullptr;               // predicted to be faster than chosen
  double ahead = 0;                                 // log(cost of chosen / cost of unmeasured)
  double regret() const { return chosen->us / best->us; }
};
Choice choice_of(const Data& data, const Constants& c, const Group& g) {
  Choice out;
  double lowest = 0;
  for (const size_t i : g.samples) {
    const Sample& s = data.samples[i];
    if (!out.best || s.us < out.best->us) out.best = &s;
    if (const double us = cost_of(data, c, s); !out.chosen || us < lowest) lowest = us, out.chosen = &s;
  }
  for (const Sample& s : g.unmeasured)
    if (const double ahead = std::log(lowest / cost_of(data, c, s)); ahead > out.ahead)
      out.ahead = ahead, out.unmeasured = &s;
  return out;
}

// A penalty on constants of single kernels: kernels are much alike, so these stay near 1 unless the rows demand otherwise.
double apart(const Constants& c, DType w) {
  const TileConstants& t = c.tile[w == DType::kE2M1 ? 0 : 1];
  const size_t count = cuda::tile_kernels({w}).size();
  double sum = 0;
  for (size_t k = 0; k < count; ++k)
    sum += std::pow(std::log(t.pace[k]), 2) + std::pow(std::log(t.memory[k]), 2);
  return sum / static_cast<double>(count);
}

// The mean regret of the choices, where regret above kBeyond weighs more, plus part of the error of predicted times, so that costs remain
// microseconds.
double regret_loss(const Data& data, const Constants& c, DType w) {
  constexpr double kBeyond = 0.03, kBeyondWeight = 2, kTimes = 0.3, kApart = 0.02, kUnmeasured = 0.05;
  double sum = 0;
  int groups = 0;
  for (const Group& g : data.groups) {
    if (g.problem.w != w || g.held_out) continue;
    const Choice choice = choice_of(data, c, g);
    // Choosing an unmeasured configuration counts as this much slower, because an earlier model ruled it out.
    const double lost = std::log(choice.regret()) + (choice.unmeasured ? kUnmeasured + choice.ahead : 0);
    sum += lost + kBeyondWeight * std::max(0.0, lost - kBeyond), ++groups;
  }
  return sum / groups + kTimes * loss(data, c, w) + kApart * apart(c, w);
}

// Residuals of least squares: the error of each row's logarithm, minus part of the mean error of its problem; then the logarithms of the
// single kernels' constants.
std::vector<double> residuals(const Data& data, const Constants& c, DType w) {
  constexpr double kApart = 0.05, kLevel = 0.4;
  std::vector<double> out;
  double weights = 0;
  for (const Group& g : data.groups) {
    if (g.problem.w != w || g.held_out) continue;
    double errors = 0, of_group = 0;
    const size_t first = out.size();
    for (const size_t i : g.samples) {
      const Sample& s = data.samples[i];
      out.push_back(std::log(predicted(data, c, s) / s.us));
      errors += s.weight * out.back(), of_group += s.weight;
    }
    for (size_t i = 0; i < g.samples.size(); ++i) {
      out[first + i] -= (has_its_level(g) ? kLevel : 1) * errors / of_group;
      out[first + i] *= std::sqrt(data.samples[g.samples[i]].weight);
    }
    weights += of_group;
  }
  const TileConstants& t = c.tile[w == DType::kE2M1 ? 0 : 1];
  const size_t count = cuda::tile_kernels({w}).size();
  for (size_t k = 0; k < count; ++k)
    for (const double own : {t.pace[k], t.memory[k]})
      out.push_back(std::log(own) * std::sqrt(kApart * weights / static_cast<double>(count)));
  return out;
}

void descend(const Data& data, Constants* c, DType w, int rounds, double first_step) {
  const std::vector<double*> constants = free_constants(c, w);
  std::vector<double> step(constants.size(), first_step);
  double lowest = regret_loss(data, *c, w);
  for (int round = 0; round < rounds; ++round)
    for (size_t i = 0; i < constants.size(); ++i) {
      const double before = *constants[i];
      bool better = false;
      for (const double factor : {1 + step[i], 1 / (1 + step[i])}) {
        *constants[i] = before * factor;
        const double now = regret_loss(data, *c, w);
        if (now < lowest) {
          lowest = now, better = true;
          break;
        }
        *constants[i] = before;
      }
      step[i] = better ? std::min(0.3, step[i] * 1.5) : std::max(1e-3, step[i] / 2);
    }
}

// Runs several descents on the choices, because they end in different places: from the current constants, from the least squares of times,
// and from points around the best so far.
void fit(const Data& data, Constants* c, DType w) {
  constexpr int kStarts = 6;
  constexpr double kAround = 0.02;
  std::mt19937 random(1);
  double lowest = 0;
  for (int start = 0; start < kStarts; ++start) {
    Constants one = *c;
    if (start == 1)
      least_squares(
          free_constants(&one, w), [&] { return residuals(data, one, w); }, 30);
    if (start > 1)
      for (double* value : free_constants(&one, w))
        *value *= std::exp(std::normal_distribution<double>(0, kAround)(random));
    descend(data, &one, w, 20, 0.05);
    const double now = regret_loss(data, one, w);
    std::printf("%s, start %d: loss %.5f, RMS error of log(time) near the best: %.3f\n",
                std::string(text(w)).c_str(), start, now, std::sqrt(loss(data, one, w)));
    std::fflush(stdout);
    if (start == 0 || now < lowest) lowest = now, *c = one;
  }
}

void print_regret(const Data& data, const Constants& c) {
  struct Sum {
    double logs = 0, worst = 1;
    int count = 0, beyond = 0;
    std::string where;
  };
  std::map<std::string, Sum> sums;
  for (const Group& g : data.groups) {
    const Choice choice = choice_of(data, c, g);
    const auto [best, chosen, unmeasured, ahead] = choice;
    const double regret = choice.regret();
    if (unmeasured)
      std::printf("  at %s an unmeasured configuration is chosen: %s, predicted at %.3f of the cost of %s\n",
                  g.name.c_str(), unmeasured->config.c_str(), std::exp(-ahead), chosen->config.c_str());
    for (const std::string& key :
         {std::string(text(g.problem.w)) + (g.held_out ? " held out" : ""),
          std::string(g.name.find("zipf") == std::string::npos ? "uniform" : "zipf")}) {
      Sum& sum = sums[key];
      sum.logs += std::log(regret), ++sum.count;
      if (regret > 1.05) ++sum.beyond;
      if (regret > sum.worst) sum.worst = regret, sum.where = g.name;
    }
    if (regret > 1.05)
      std::printf(
          "  regret %.3f at %s: chosen %s %.1f us (predicted %.1f), best %s %.1f us (predicted %.1f)\n",
          regret, g.name.c_str(), chosen->config.c_str(), chosen->us, predicted(data, c, *chosen),
          best->config.c_str(), best->us, predicted(data, c, *best));
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
    const size_t kernels = cuda::tile_kernels({w}).size();
    out += "constexpr TileConstants k" + name + "TileConstants = {\n" + field("fragment_ns", t.fragment_ns) +
           field("fragment_column_ns", t.fragment_column_ns) + field("column_ns", t.column_ns) +
           "    .pace = " + list(t.pace, kernels) + ",\n" + field("fill_bytes_per_ns", t.fill_bytes_per_ns) +
           field("row_box_ns", t.row_box_ns) + field("thread_row_ns", t.thread_row_ns) +
           field("memory_share", t.memory_share) + "    .memory = " + list(t.memory, kernels) + ",\n";
    out += field("start_us", t.start_us) + field("settled_us", t.settled_us) +
           field("by_position_us", t.by_position_us) + field("follow_us", t.follow_us) +
           field("end_us", t.end_us) + field("end_row_us", t.end_row_us) + field("short_us", t.short_us) +
           field("blend", t.blend) + field("tail", t.tail) + field("partial", t.partial) +
           field("order_us", t.order_us) + field("order_bytes_per_us", t.order_bytes_per_us) +
           field("gather_us", t.gather_us) + field("gather_item_us", t.gather_item_us) +
           "    .in_layer_us = " + list(t.in_layer_us, 2) + ",\n" + field("skew", t.skew) + "};\n";
    out += "constexpr StreamConstants k" + name + "StreamConstants = {\n" + field("start_us", s.start_us) +
           field("settled_us", s.settled_us) + field("by_position_us", s.by_position_us) +
           field("memory_share", s.memory_share) + field("unit_us", s.unit_us) + field("row_us", s.row_us) +
           "    .block_us = " + list(s.block_us, 2) + ",\n" + field("short_unit_us", s.short_unit_us) +
           "    .short_block_us = " + list(s.short_block_us, 2) + ",\n" + field("small", s.small) +
           field("lone_bytes_per_us", s.lone_bytes_per_us) + field("skew", s.skew) + "};\n";
  }
  return out;
}

int main_of(int argc, char** argv) {
  if (argc < 2 || argc > 3) return std::fputs("usage: sluice_fit_costs ROWS.csv [OUT.inc]\n", stderr), 2;
  Data data;
  if (const Status status = read_rows(argv[1], &data); !status.ok())
    return std::fprintf(stderr, "sluice_fit_costs: %s\n", status.message.c_str()), 1;
  Constants c{{cuda::tile_constants({DType::kE2M1}), cuda::tile_constants({})},
              {cuda::stream_constants({DType::kE2M1}), cuda::stream_constants({})}};
  weigh(&data, c);
  std::printf("%zu rows of %zu problems; with the current constants:\n", data.samples.size(),
              data.groups.size());
  print_regret(data, c);
  if (argc < 3) return 0;
  fit(data, &c, DType::kBF16);
  fit(data, &c, DType::kE2M1);
  print_regret(data, c);
  std::ofstream out(argv[2]);
  out << written(c);
  return out.flush() ? 0 : 1;
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) { return sluice::bench::main_of(argc, argv); }
