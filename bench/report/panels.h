// Rows sorted into what is drawn and tabled: one panel for each operation, model and note.
#pragma once
#include <map>
#include <optional>
#include <set>

#include "report/results.h"

namespace sluice::bench {

// The floor of an H200: no kernel that reads everything from memory is faster. Measured on the card: a stream that is
// only read, bf16 products at the clock that the power limit leaves, an empty kernel in a replayed graph.
constexpr double kFloorBytesPerUs = 4.55e6;
constexpr double kFloorFlopsPerUs = 700e6;
constexpr double kFloorLaunchUs = 0.51;

// What floors are made of. Rows of the operations `read` and `dense_8192` are measured beside the others and stand for
// themselves: then a panel shows both floors.
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
  std::string remark = {};  // of this row alone: "p99 12.34 ms"
};

// One implementation over the token counts.
struct Series {
  std::string impl;
  bool ours = false;  // "sluice" or "sluice-..."
  std::set<std::string> versions = {};
  std::map<int64_t, Time> at = {};
};

struct Panel {
  std::string op, model, note;
  std::vector<Series> series;          // ours first ("sluice" before its variants), then peers by name
  std::map<int64_t, double> floor_us;  // by tokens; it has every count that is measured, or is empty
  std::map<int64_t, double> bytes_us = {}, flops_us = {};  // the two floors apart, where rates are measured
};

// What a figure's axes say. Times are drawn in units of `us_per_unit`.
struct Axes {
  std::string_view x = "tokens", y = "µs", below = "Microseconds over tokens";
  double us_per_unit = 1;
};
inline constexpr Axes kServingAxes = {"concurrency", "ms", "Milliseconds over requests at once", 1000};
inline constexpr Axes kTokenRateAxes = {"concurrency", "µs", "Microseconds a token over requests at once", 1};
inline constexpr Axes kPromptAxes = {"tokens", "ms", "Milliseconds over tokens of the prompt", 1000};
inline constexpr std::string_view kServingOp = "serving";  // a server under load: no kernel, no floor
inline constexpr std::string_view kOutputTokenOp = "output_token";  // of the whole server
// None if the operation is not one of a server under load.
std::optional<Axes> serving_axes(std::string_view op);

// An operation that has rows, with its panels in the order of the rows.
struct Figure {
  std::string op;
  std::vector<Panel> panels;
  Rates rates = {};
  Axes axes = {};
};

// Of the rows of one file: the fastest burst of reading, and the product as it is sustained; measured only if both are there.
Rates rates_of(const std::vector<Row>& rows);

std::vector<Figure> figures_of(const std::vector<Row>& rows);

// What a panel's note says, and what its operation implies.
struct Conditions {
  std::string pace = {};  // "burst", "sustained" or "short replays"
  std::string routing =
      {};                 // "uniform", "zipf", "by router", "by random logits"; empty where nothing is routed
  std::string rest = {};  // "with copies"
};
Conditions conditions_of(const Panel& panel);

// The conditions that all panels of the figure share; empty words where they differ.
Conditions common_conditions(const Figure& figure);

// "burst, routing uniform", "short replays".
std::string text_of(const Conditions& conditions);
// "gpt-oss-120b, burst, routing uniform", "2880x128, short replays, bf16 logits"; without what `common` says.
std::string title_of(const Panel& panel, const Conditions& common = {});

std::set<std::string> peers_of(const Panel& panel);
std::set<std::string> peers_of(const Figure& figure);  // of all its panels
// Peers of the figure that have no row in the panel, parted by commas; empty if all of them have one.
std::string missing_peers(const Figure& figure, const Panel& panel);
const Series* series_named(const Panel& panel, std::string_view impl);
// Null if no peer has a row at this count.
const Series* fastest_peer(const Panel& panel, int64_t tokens);
// Median of the fastest peer over the median of "sluice"; none where one of them has no row.
std::optional<double> ratio_at(const Panel& panel, int64_t tokens);

}  // namespace sluice::bench
