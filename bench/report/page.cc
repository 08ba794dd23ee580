#include "report/page.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <utility>

#include "report/markdown.h"

namespace sluice::bench {
namespace {

constexpr OpWords kWords[] = {
    {"router_gemm", "Router GEMM, plain launches", "hidden x experts, logits"},
    {"router_gemm_pdl", "Router GEMM in a chain of dependent launches", "hidden x experts, logits"},
    {"router_route_fused", "Router and routing fused: from activations to ids and weights",
     "hidden x experts, launches"},
    {"route_group", "Routing and grouping: from logits to rows sorted by expert",
     "experts x top_k, method, launches"},
    {"chain", "RMSNorm, router, routing and grouping as one captured chain",
     "hidden x experts, concurrent copies"},
    {"expert_gemms", "Both expert GEMMs, with rows already sorted by expert", "model, pace, routing"},
    {"moe_layer", "The expert layer, from ids and weights to its output", "model, pace, routing"},
    {"moe_block", "The MoE block, from activations: router, routing and the expert layer", "model, pace"},
    {"draft_step", "A draft step: router, routing, experts and the shared expert as one captured chain",
     "model, pace"},
    {"decode", "Decode step of the engine, by sequences", "model, pace, context"},
    {"prefill", "Prefill: one prompt up to its first token, by its tokens", "model, pace"},
    {"ttft", "Time to first token", "model, tokens of a request"},
    {"tpot", "Time per output token after the first", "model, tokens of a request"},
    {"itl", "Inter-token latency: the time between two events of an answer", "model, tokens of a request"},
    {kOutputTokenOp, "Output throughput of the server", "model, tokens of a request"},
    {"cached_prompt", "Time to first token of a long prompt, by its tokens", "model, what is cached"},
};

// Token counts up to here belong to decode steps, above to prompts.
constexpr int64_t kFewTokens = 512;

bool has_ratio(const Panel& panel) {
  return std::any_of(panel.floor_us.begin(), panel.floor_us.end(),
                     [&](const auto& at) { return ratio_at(panel, at.first).has_value(); });
}

// The columns for whole models: tokens per second, and the floor as a fraction of the time.
std::vector<std::string> rate_cells(const Panel& panel, int64_t tokens, double floor) {
  const Series* ours = series_named(panel, "sluice");
  if (!ours || !ours->at.contains(tokens)) return {"", ""};
  const double us = ours->at.at(tokens).median_us;
  return {printed("%.0f", 1e6 * static_cast<double>(tokens) / us), printed("%.2f", floor / us)};
}

// The mean number of experts per layer that a step read, from the rows: Sluice's number, and the numbers of baselines if they differ
// ("110.9, vllm 85.2").
std::string experts_cell(const Panel& panel, int64_t tokens) {
  constexpr double kAlike = 0.02;
  std::string out;
  std::optional<double> first;
  for (const Series& s : panel.series) {
    const auto at = s.at.find(tokens);
    if (at == s.at.end() || !at->second.remark.ends_with(" experts")) continue;
    const double read = std::strtod(at->second.remark.c_str(), nullptr);
    if (first && std::abs(read / *first - 1) <= kAlike) continue;
    out += (first ? ", " : "") + (s.ours ? "" : s.impl + " ") + printed("%.1f", read);
    if (!first) first = read;
  }
  return out;
}

bool says_experts(const Panel& panel) {
  return std::any_of(panel.floor_us.begin(), panel.floor_us.end(),
                     [&](const auto& at) { return !experts_cell(panel, at.first).empty(); });
}

std::string table_of(const Panel& panel) {
  std::vector<std::string> head = {panel.op == "decode" ? "sequences" : "tokens", "floor"};
  const bool experts = says_experts(panel);
  if (experts) head.insert(head.begin() + 1, "experts");
  for (const Series& s : panel.series) head.push_back(s.impl);
  const bool ratio = has_ratio(panel);
  if (ratio) head.push_back("ratio");
  head.insert(head.end(), {"tokens/s", "of the floor"});
  std::string out = line_of(head) + rule_of(head.size(), 0);
  for (const auto& [tokens, floor] : panel.floor_us) {
    std::vector<std::string> cells = {std::to_string(tokens), us_text(floor)};
    if (experts) cells.insert(cells.begin() + 1, experts_cell(panel, tokens));
    double fastest = INFINITY;
    for (const Series& s : panel.series)
      if (const auto at = s.at.find(tokens); at != s.at.end())
        fastest = std::min(fastest, at->second.median_us);
    for (const Series& s : panel.series) {
      const auto at = s.at.find(tokens);
      const std::string us = at == s.at.end() ? "" : us_text(at->second.median_us);
      cells.push_back(at != s.at.end() && at->second.median_us == fastest ? "**" + us + "**" : us);
    }
    if (ratio) {
      const auto r = ratio_at(panel, tokens);
      cells.push_back(r ? printed("%.2f", *r) : "");
    }
    for (std::string& cell : rate_cells(panel, tokens, floor)) cells.push_back(std::move(cell));
    out += line_of(cells);
  }
  return out;
}

// The lowest ratio with its token count, and the geometric mean, over token counts from `first` to `last`. A single baseline has no mean.
std::vector<std::string> summary_cells(const Panel& panel, int64_t first, int64_t last) {
  double lowest = INFINITY, logs = 0;
  int64_t where = 0, count = 0;
  std::set<std::string> peers;
  for (const auto& [tokens, floor] : panel.floor_us) {
    const auto r = ratio_at(panel, tokens);
    if (!r || tokens < first || tokens > last) continue;
    if (*r < lowest) lowest = *r, where = tokens;
    logs += std::log(*r);
    ++count;
    for (const Series& s : panel.series)
      if (!s.ours && s.at.contains(tokens)) peers.insert(s.impl);
  }
  if (count == 0) return {"", ""};
  return {printed("%.2f", lowest) + " at " + std::to_string(where),
          peers.size() < 2 ? "" : printed("%.2f", std::exp(logs / static_cast<double>(count)))};
}

std::string summary_of(const Figure& figure, const Conditions& common) {
  const std::string few = std::to_string(kFewTokens);
  const std::string lowest = "lowest ratio up to " + few + " tokens", mean = "mean up to " + few;
  const std::vector<std::string> head = {"problem",     lowest,      mean, "lowest ratio beyond",
                                         "mean beyond", "no rows of"};
  std::string rows;
  for (const Panel& panel : figure.panels) {
    if (!has_ratio(panel)) continue;
    std::vector<std::string> cells = {title_of(panel, common)};
    for (const auto& [first, last] : {std::pair{int64_t{1}, kFewTokens}, {kFewTokens + 1, INT64_MAX}})
      for (std::string& cell : summary_cells(panel, first, last)) cells.push_back(std::move(cell));
    cells.push_back(missing_peers(figure, panel));
    rows += line_of(cells);
  }
  return rows.empty() ? "" : line_of(head) + rule_of(head.size(), 1) + rows + "\n";
}

// The token counts that an operation's table lists: all if they are few, else kListedCounts, and all counts of panels that have none of
// kListedCounts. The file of rows has the others.
constexpr int64_t kListedCounts[] = {1, 8, 64, 256, 1024, 4096, 16384};
constexpr size_t kFewCounts = 8;

std::set<int64_t> listed_counts(const Figure& figure) {
  std::set<int64_t> all, listed;
  for (const Panel& panel : figure.panels) {
    std::set<int64_t> counts, some;
    for (const auto& at : panel.floor_us) counts.insert(at.first);
    for (const int64_t tokens : kListedCounts)
      if (counts.contains(tokens)) some.insert(tokens);
    listed.merge(some.empty() ? std::set<int64_t>(counts) : some);
    all.merge(counts);
  }
  return all.size() <= kFewCounts ? all : listed;
}

// A time, for "sluice" with the ratio: "2.00 (1.30)".
std::string our_cell(const Panel& panel, const Series& series, int64_t tokens) {
  const auto at = series.at.find(tokens);
  if (at == series.at.end()) return "";
  const std::string us = us_text(at->second.median_us);
  if (series.impl != "sluice") return us;
  const std::optional<double> ratio = ratio_at(panel, tokens);
  return ratio ? us + printed(" (%.2f)", *ratio) : us;
}

std::string fastest_cell(const Panel& panel, int64_t tokens) {
  const Series* fastest = fastest_peer(panel, tokens);
  return fastest ? us_text(fastest->at.at(tokens).median_us) + " " + fastest->impl : "";
}

// One row for each of Sluice's implementations, and one for the fastest other library at each count.
std::string times_of(const Figure& figure, const Conditions& common) {
  const std::set<int64_t> counts = listed_counts(figure);
  std::vector<std::string> head = {"problem", "us"};
  for (const int64_t tokens : counts) head.push_back(std::to_string(tokens));
  std::string out = line_of(head) + rule_of(head.size(), 2);
  for (const Panel& panel : figure.panels) {
    std::string title = title_of(panel, common);  // in the first row of the panel
    for (const Series& s : panel.series) {
      if (!s.ours) continue;
      std::vector<std::string> cells = {std::exchange(title, ""), s.impl};
      for (const int64_t tokens : counts) cells.push_back(our_cell(panel, s, tokens));
      out += line_of(cells);
    }
    if (peers_of(panel).empty()) continue;
    std::vector<std::string> cells = {std::exchange(title, ""), "fastest other"};
    for (const int64_t tokens : counts) cells.push_back(fastest_cell(panel, tokens));
    out += line_of(cells);
  }
  return out;
}

// Explains the paces and routings that occur in headings.
std::string pace_of(const std::vector<Figure>& figures, bool whole_models) {
  std::set<std::string> paces, routings;
  for (const Figure& f : figures)
    for (const Panel& p : f.panels) {
      const Conditions c = conditions_of(p);
      paces.insert(c.pace);
      routings.insert(c.routing);
    }
  std::string out;
  const auto say = [&out](const std::set<std::string>& there, const char* word, const char* meaning) {
    if (there.contains(word)) out += std::string("- ") + meaning + "\n";
  };
  say(paces, "burst",
      whole_models ? "burst: at most 20 ms of work, or one prompt, after 100 ms of rest."
                   : "burst: at most 5 ms of work, after 10 ms of rest.");
  say(paces, "sustained",
      whole_models ? "sustained: 600 ms of work without rest; the second half is timed."
                   : "sustained: 300 ms of work without rest; the second half is timed.");
  say(paces, "short replays",
      "short replays: graphs of at least 10 runs and 0.4 ms, implementations alternating.");
  say(routings, "uniform", "routing uniform: every expert is equally likely.");
  say(routings, "zipf",
      whole_models ? "routing zipf: an expert's probability is inversely proportional to its popularity "
                     "rank, which differs "
                     "from layer to layer. Rows that name no routing are uniform."
                   : "routing zipf: an expert's probability is inversely proportional to its popularity "
                     "rank, which differs "
                     "from sample to sample.");
  say(routings, "by router", "routing by router: the router chooses from random activations and weights.");
  say(routings, "by random logits", "routing by random logits: experts are chosen from random logits.");
  return out + "\n";
}

// The text after "The floor is ".
std::string floor_text(const Rates& rates) {
  std::string out = printed("%.2f us for a launch plus the larger of ", kFloorLaunchUs) +
                    printed("bytes / %.2f TB/s and ", rates.bytes_per_us * 1e-6) +
                    printed("flops / %.0f TFLOP/s,\n", rates.flops_per_us * 1e-6) +
                    "  with every byte read from memory once. A kernel whose activations are still in a "
                    "cache can beat it.\n";
  if (rates.measured)
    out +=
        "- Both rates are rows of the same file: a read-only stream in bursts, and cuBLASLt's bf16\n"
        "  GEMM of 8192^3, sustained.\n";
  return out;
}

std::string models_preamble(const Rates& rates) {
  return "- Times are medians in microseconds; weights are random (`--load-format dummy`). A decode\n"
         "  step computes one token of each sequence, from its ids to the sampled ids. The fastest time\n"
         "  of each row is bold.\n"
         "- Experts: the number of distinct experts per layer that the tokens of a step chose, averaged\n"
         "  over layers and counted after the timed steps. The floor counts the bytes of these experts\n"
         "  only. Another library's number is given if it differs by more than 2%.\n"
         "- Other libraries ran the same checkpoint (`make-checkpoint --like MODEL`; for zipf also its\n"
         "  router biases) at the same paces (`bench/python/engine_beside.py`), with other random\n"
         "  tokens as prompts. vLLM launches the kernels of prompts one by one, so up to about 4096\n"
         "  tokens its host limits the speed, and times differ by a quarter between runs.\n"
         "- Of the floor: the floor divided by the time of `sluice`; 1 is ideal.\n"
         "- Ratio: the time of the fastest other library divided by the time of `sluice`. Above 1,\n"
         "  Sluice is faster. Means are geometric, and only given if at least two other libraries have\n"
         "  rows.\n"
         "- The floor is " +
         floor_text(rates);
}

std::string operations_preamble(const Suite& suite, const Rates& rates) {
  return "- Times are medians in microseconds of one run of the operation. A graph of runs over\n"
         "  rotating buffers is replayed, so weights come from memory.\n"
         "- In brackets: the time of the fastest other library divided by the time of `sluice`. Above\n"
         "  1, Sluice is faster. The row `fastest other` names the library.\n"
         "- Lowest and mean ratios cover all measured token counts. Means are geometric, and only given\n"
         "  if at least two other libraries have rows.\n"
         "- The tables list some token counts. `" +
         std::string(suite.name) + ".csv` has all of them, and every library.\n" +
         "- The floor in the figures is " + floor_text(rates);
}

// All panels in one table.
std::string operation_of(const Figure& figure) {
  const Conditions common = common_conditions(figure);
  const std::string shared = text_of(common);
  std::string out = shared.empty() ? "" : "All rows: " + shared + ".\n\n";
  if (peers_of(figure).empty()) out += "No other library has rows of this operation.\n\n";
  return out + summary_of(figure, common) + times_of(figure, common);
}

// A table for each panel, under its heading.
std::string steps_of(const Figure& figure) {
  std::string out = peers_of(figure).empty() ? "No other library has rows of this operation.\n\n" : "";
  out += summary_of(figure, {});
  for (size_t i = 0; i < figure.panels.size(); ++i)
    out += (i ? "\n### " : "### ") + title_of(figure.panels[i]) + "\n\n" +
           caption_of(figure, figure.panels[i]) + table_of(figure.panels[i]);
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

std::string picture_of(const Suite& suite, const Figure& figure) {
  const bool ms = figure.axes.us_per_unit == 1000;
  return "![" + figure.op + (ms ? ": milliseconds over " : ": microseconds over ") +
         std::string(figure.axes.x) + "](" + figure_name(suite, figure) + ".svg)\n\n";
}

std::string caption_of(const Figure& figure, const Panel& panel) {
  std::set<std::string> ours;
  for (const Series& s : panel.series)
    if (s.ours) ours.insert(s.versions.begin(), s.versions.end());
  std::string out = ours.empty() ? "" : "Sluice at " + joined(ours, ", ") + ".";
  const std::string missing = missing_peers(figure, panel);
  if (!missing.empty()) out += (out.empty() ? "" : " ") + ("No rows of " + missing + " here.");
  return out.empty() ? "" : out + "\n\n";
}

std::string versions_of(const std::vector<Figure>& figures) {
  std::map<std::string, std::set<std::string>> versions;
  for (const Figure& f : figures)
    for (const Panel& p : f.panels)
      for (const Series& s : p.series) versions[s.impl].insert(s.versions.begin(), s.versions.end());
  std::string out;
  for (const auto& [impl, of] : versions) out += "- " + impl + ": " + joined(of, ", ") + "\n";
  return out;
}

std::string page_of(const Suite& suite, const std::vector<Figure>& figures) {
  if (suite.of == SuiteOf::kServers) return serving_page_of(suite, figures);
  const bool whole_models = suite.of == SuiteOf::kWholeModels;
  const Rates rates = figures.empty() ? Rates{} : figures.front().rates;
  std::string out = "# " + std::string(suite.title) + "\n\n";
  out += "Written by `sluice bench report` from measured rows.\n\n";
  out += whole_models ? models_preamble(rates) : operations_preamble(suite, rates);
  out += pace_of(figures, whole_models);
  out += "Versions; versions of Sluice are commits:\n\n" + versions_of(figures);
  for (const Figure& figure : figures) {
    out += "\n## " + std::string(words_of_op(figure.op).title) + "\n\n" + picture_of(suite, figure);
    out += whole_models ? steps_of(figure) : operation_of(figure);
  }
  return out;
}

}  // namespace sluice::bench
