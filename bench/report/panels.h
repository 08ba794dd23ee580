// Rows sorted into figures and panels: one panel for each operation, model and note.
#pragma once
#include <map>
#include <optional>
#include <set>

#include "report/results.h"

namespace sluice::bench {

// The roofline of an H200: the least time of a kernel that reads all its operands from memory. All three rates were measured: a read-only stream,
// a bf16 GEMM at the clock that the power limit allows, and an empty kernel in a replayed graph.
constexpr double kFloorBytesPerUs = 4.55e6;
constexpr double kFloorFlopsPerUs = 700e6;
constexpr double kFloorLaunchUs = 0.51;

// The rates from which a roofline follows. If the file has rows of `read` and `dense_8192`, these rates were measured in the same
// session, and the panels show the byte and flop floors.
struct Rates {
  double bytes_per_us = kFloorBytesPerUs, flops_per_us = kFloorFlopsPerUs;
  bool measured = false;
  double bytes_us(double bytes) const { return kFloorLaunchUs + bytes / bytes_per_us; }
  double flops_us(double flops) const { return kFloorLaunchUs + flops / flops_per_us; }
};
constexpr double floor_us(double bytes, double flops, const Rates& rates = {}) {
  const double moved = bytes / rates.bytes_per_us, multiplied = flops / rates.flops_per_us;
  return kFloorLaunchUs + (moved > multiplied ? moved : multiplied);
}

struct Time {
  double median_us = 0, p10_us = 0, p90_us = 0;
  std::string remark = {};  // only for this row: "p99 12.34 ms"
};

// The times of one implementation, by token count.
struct Series {
  std::string impl;
  bool ours = false;  // "sluice" or "sluice-..."
  std::set<std::string> versions = {};
  std::map<int64_t, Time> at = {};
};

struct Panel {
  std::string op, model, note;
  std::vector<Series> series;          // Sluice first ("sluice" before its variants), then baselines by name
  std::map<int64_t, double> floor_us;  // by tokens; empty, or complete for all measured counts
  std::map<int64_t, double> bytes_us = {},
                            flops_us = {};  // the two parts of floor_us, if the rates were measured
};

// The labels of a figure's axes. Times are drawn in units of `us_per_unit`.
struct Axes {
  std::string_view x = "tokens", y = "µs", below = "Microseconds over tokens";
  double us_per_unit = 1;
};
inline constexpr Axes kServingAxes = {"concurrency", "ms", "Milliseconds over concurrent requests", 1000};
inline constexpr Axes kTokenRateAxes = {"concurrency", "µs",
                                        "Microseconds per token over concurrent requests", 1};
inline constexpr Axes kPromptAxes = {"tokens", "ms", "Milliseconds over prompt tokens", 1000};
inline constexpr std::string_view kServingOp = "serving";  // a server under load: no kernel, no roofline
inline constexpr std::string_view kOutputTokenOp = "output_token";  // for the whole server
// nullopt if the operation is not one of a server under load.
std::optional<Axes> serving_axes(std::string_view op);

// All panels of one operation, in the order of the rows.
struct Figure {
  std::string op;
  std::vector<Panel> panels;
  Rates rates = {};
  Axes axes = {};
};

// The rates in one file: the fastest read in bursts, and the sustained bf16 GEMM. They count as measured only if both have rows.
Rates rates_of(const std::vector<Row>& rows);

std::vector<Figure> figures_of(const std::vector<Row>& rows);

// The conditions of a measurement, from a panel's note or implied by its operation.
struct Conditions {
  std::string pace = {};     // "burst", "sustained" or "short replays"
  std::string routing = {};  // "uniform", "zipf", "by router", "by random logits"; empty if nothing is routed
  std::string rest = {};     // "with copies"
};
Conditions conditions_of(const Panel& panel);

// The conditions that all panels of the figure share; a field in which they differ is empty.
Conditions common_conditions(const Figure& figure);

// "burst, routing uniform", "short replays".
std::string text_of(const Conditions& conditions);
// "gpt-oss-120b, burst, routing uniform", "2880x128, short replays, bf16 logits"; without the words of `common`.
std::string title_of(const Panel& panel, const Conditions& common = {});

std::set<std::string> peers_of(const Panel& panel);
std::set<std::string> peers_of(const Figure& figure);  // in any of its panels
// The figure's baselines without a row in the panel, separated by commas; empty if all have a row.
std::string missing_peers(const Figure& figure, const Panel& panel);
const Series* series_named(const Panel& panel, std::string_view impl);
// The baseline with the shortest time at this count; null if none has a row.
const Series* fastest_peer(const Panel& panel, int64_t tokens);
// The median of the fastest baseline divided by the median of "sluice"; nothing if one of them has no row.
std::optional<double> ratio_at(const Panel& panel, int64_t tokens);

}  // namespace sluice::bench
