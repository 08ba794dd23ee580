#include "report/page.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>

namespace sluice::bench {
namespace {

constexpr OpWords kWords[] = {
    {"router_gemm", "Router GEMM, plain launches", "hidden x experts"},
    {"router_gemm_pdl", "Router GEMM in a chain of dependent launches", "hidden x experts"},
    {"router_route_fused", "From activations to experts and weights", "hidden x experts"},
    {"route_group", "From logits to rows sorted by expert", "experts x top_k, method"},
    {"chain", "RMSNorm, router, routing and grouping as one recorded chain", "hidden x experts"},
    {"expert_gemms", "Both GEMMs of the experts, rows by expert ready", "model, pace, routing"},
    {"moe_layer", "The layer, from ids and weights to its output", "model, pace, routing"},
    {"moe_block", "The block, from activations: router, routing and the layer", "model, pace, routing"},
    {"draft_step", "A draft step: router, routing, experts and the shared expert as one recorded chain",
     "model, pace, routing"},
};

// Token counts are small up to here: a step of decoding, rather than of prompts.
constexpr int64_t kFewTokens = 512;

std::string printed(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string us_text(double us) { return printed(us < 10 ? "%.2f" : us < 100 ? "%.1f" : "%.0f", us); }

std::string line_of(const std::vector<std::string>& cells) {
  std::string out = "|";
  for (const std::string& cell : cells) out += " " + cell + " |";
  return out + "\n";
}

std::string rule_of(size_t columns, size_t left) {
  std::string out = "|";
  for (size_t i = 0; i < columns; ++i) out += i < left ? "---|" : "--:|";
  return out + "\n";
}

bool has_ratio(const Panel& panel) {
  return std::any_of(panel.floor_us.begin(), panel.floor_us.end(),
                     [&](const auto& at) { return ratio_at(panel, at.first).has_value(); });
}

std::string table_of(const Panel& panel) {
  std::vector<std::string> head = {"tokens", "floor"};
  for (const Series& s : panel.series) head.push_back(s.impl);
  const bool ratio = has_ratio(panel);
  if (ratio) head.push_back("ratio");
  std::string out = line_of(head) + rule_of(head.size(), 0);
  for (const auto& [tokens, floor] : panel.floor_us) {
    std::vector<std::string> cells = {std::to_string(tokens), us_text(floor)};
    double least = INFINITY;
    for (const Series& s : panel.series)
      if (const auto at = s.at.find(tokens); at != s.at.end()) least = std::min(least, at->second.median_us);
    for (const Series& s : panel.series) {
      const auto at = s.at.find(tokens);
      const std::string us = at == s.at.end() ? "" : us_text(at->second.median_us);
      cells.push_back(at != s.at.end() && at->second.median_us == least ? "**" + us + "**" : us);
    }
    if (ratio) {
      const auto r = ratio_at(panel, tokens);
      cells.push_back(r ? printed("%.2f", *r) : "");
    }
    out += line_of(cells);
  }
  return out;
}

// The lowest ratio, where it is, and the geometric mean, over the counts from `first` to `last`.
std::vector<std::string> summary_cells(const Panel& panel, int64_t first, int64_t last) {
  double lowest = INFINITY, logs = 0;
  int64_t where = 0, count = 0;
  for (const auto& [tokens, floor] : panel.floor_us) {
    const auto r = ratio_at(panel, tokens);
    if (!r || tokens < first || tokens > last) continue;
    if (*r < lowest) lowest = *r, where = tokens;
    logs += std::log(*r);
    ++count;
  }
  if (count == 0) return {"", ""};
  return {printed("%.2f", lowest) + " at " + std::to_string(where),
          printed("%.2f", std::exp(logs / static_cast<double>(count)))};
}

std::string summary_of(const Figure& figure) {
  const std::string few = std::to_string(kFewTokens);
  const std::vector<std::string> head = {"panel", "lowest ratio up to " + few + " tokens",
                                         "mean up to " + few, "lowest ratio beyond", "mean beyond"};
  std::string rows;
  for (const Panel& panel : figure.panels) {
    if (!has_ratio(panel)) continue;
    std::vector<std::string> cells = {title_of(panel)};
    for (const auto& [first, last] : {std::pair{int64_t{1}, kFewTokens}, {kFewTokens + 1, INT64_MAX}})
      for (std::string& cell : summary_cells(panel, first, last)) cells.push_back(std::move(cell));
    rows += line_of(cells);
  }
  return rows.empty() ? "" : line_of(head) + rule_of(head.size(), 1) + rows + "\n";
}

// "flashinfer-tinygemm (flashinfer 0.6.18)": each implementation with the versions that were measured.
std::string versions_of(const std::vector<Figure>& figures) {
  std::map<std::string, std::set<std::string>> versions;
  for (const Figure& f : figures)
    for (const Panel& p : f.panels)
      for (const Series& s : p.series) versions[s.impl].insert(s.version);
  std::string out;
  for (const auto& [impl, of] : versions) {
    std::string all;
    for (const std::string& version : of) all += (all.empty() ? "" : ", ") + version;
    out += "- " + impl + ": " + all + "\n";
  }
  return out;
}

}  // namespace

OpWords words_of_op(std::string_view op) {
  for (const OpWords& words : kWords)
    if (words.op == op) return words;
  return {op, op, ""};
}

std::string figure_name(const Suite& suite, const Figure& figure) {
  return std::string(suite.figures) + figure.op;
}

std::string page_of(const Suite& suite, const std::vector<Figure>& figures) {
  const Rates rates = figures.empty() ? Rates{} : figures.front().rates;
  std::string out = "# " + std::string(suite.title) + "\n\n";
  out +=
      "Written by `sluice bench report` from measured rows. Times are medians in microseconds for one run of "
      "the operation,\n"
      "out of replays of a recorded chain of runs over rotating buffers; all implementations of a row were "
      "measured in turn\n"
      "in one run, unless the README beside the measured rows says otherwise. The fastest of each row is "
      "bold. Ratio is the time of the fastest peer over that of "
      "`sluice`: above 1,\n"
      "Sluice is faster; means are geometric. The floor is " +
      printed("%.2f us for a launch and the larger of ", kFloorLaunchUs) +
      printed("bytes / %.2f TB/s and\n", rates.bytes_per_us * 1e-6) +
      printed("flops / %.0f TFLOP/s", rates.flops_per_us * 1e-6) +
      ", with every byte read from memory once: activations that a cache still holds can beat it.\n\n";
  if (rates.measured)
    out +=
        "Both rates were measured in the same run: bytes of a stream that is only read, in a burst; flops of "
        "a bf16 "
        "product of 8192^3\nby cuBLASLt, sustained. A burst is at most 5 ms of work behind 10 ms of rest; "
        "sustained work "
        "goes on for 300 ms, its second\nhalf timed. Weights never come from the cache: several sets and "
        "routings take "
        "turns.\n\n";
  out += versions_of(figures);
  for (const Figure& figure : figures) {
    out += "\n## " + std::string(words_of_op(figure.op).title) + "\n\n";
    const std::string name = figure_name(suite, figure);
    out += "![" + figure.op + ": microseconds over tokens](" + name + ".svg)\n\n";
    out += summary_of(figure);
    for (size_t i = 0; i < figure.panels.size(); ++i)
      out += (i ? "\n### " : "### ") + title_of(figure.panels[i]) + "\n\n" + table_of(figure.panels[i]);
  }
  return out;
}

}  // namespace sluice::bench
