// The page of servers under load: client-side times, in milliseconds, over concurrent requests.
#include <algorithm>
#include <cmath>

#include "report/markdown.h"
#include "report/page.h"

namespace sluice::bench {
namespace {

constexpr double kUsPerMs = 1000, kUsPerSecond = 1e6;

// A table cell: "12.3, p99 45.60 ms", or tokens per second for the output throughput.
std::string cell_of(const Panel& panel, const Time& time, bool best) {
  const bool rate = panel.op == kOutputTokenOp;
  const std::string value =
      rate ? printed("%.0f", kUsPerSecond / time.median_us) : us_text(time.median_us / kUsPerMs);
  return (best ? "**" + value + "**" : value) + (time.remark.empty() ? "" : ", " + time.remark);
}

std::set<int64_t> counts_of(const Panel& panel) {
  std::set<int64_t> out;
  for (const Series& s : panel.series)
    for (const auto& [count, time] : s.at) out.insert(count);
  return out;
}

std::string table_of(const Figure& figure, const Panel& panel) {
  std::vector<std::string> head = {std::string(figure.axes.x)};
  for (const Series& s : panel.series) head.push_back(s.impl);
  head.push_back("ratio");
  std::string out = line_of(head) + rule_of(head.size(), 0);
  for (const int64_t count : counts_of(panel)) {
    double fastest = INFINITY;
    for (const Series& s : panel.series)
      if (const auto at = s.at.find(count); at != s.at.end())
        fastest = std::min(fastest, at->second.median_us);
    std::vector<std::string> cells = {std::to_string(count)};
    for (const Series& s : panel.series) {
      const auto at = s.at.find(count);
      cells.push_back(at == s.at.end() ? "" : cell_of(panel, at->second, at->second.median_us == fastest));
    }
    const auto ratio = ratio_at(panel, count);
    cells.push_back(ratio ? printed("%.2f", *ratio) : "");
    out += line_of(cells);
  }
  return out;
}

}  // namespace

std::string serving_page_of(const Suite& suite, const std::vector<Figure>& figures) {
  std::string out = "# " + std::string(suite.title) + "\n\n";
  out += "Written by `sluice bench report` from measured rows.\n\n";
  out +=
      "- Each server was alone on the GPU, with random weights. `sluice bench serve` sent the requests from\n"
      "  the same machine (`bench/python/serving.py`). `vllm+sluice` is vLLM with Sluice's experts.\n"
      "- Times are medians in milliseconds as clients see them ([how they are taken](../clients.md)),\n"
      "  followed by P99. Output throughput is in tokens per second. The best value of each row is bold.\n"
      "- Random weights depend on Sluice's version, which is listed below. From d7f6296 on they route "
      "tokens\n"
      "  evenly over the experts in all layers, as vLLM's random weights do. With older weights "
      "gpt-oss-120b\n"
      "  reads a quarter fewer experts at 64 requests.\n"
      "- Ratio: the best other server's time divided by the time of `sluice`. Above 1, Sluice is faster.\n\n";
  out += "Versions; versions of Sluice are commits:\n\n" + versions_of(figures);
  for (const Figure& figure : figures) {
    out += "\n## " + std::string(words_of_op(figure.op).title) + "\n\n" + picture_of(suite, figure);
    for (size_t i = 0; i < figure.panels.size(); ++i)
      out += (i ? "\n### " : "### ") + title_of(figure.panels[i]) + "\n\n" +
             caption_of(figure, figure.panels[i]) + table_of(figure, figure.panels[i]);
  }
  return out;
}

}  // namespace sluice::bench
