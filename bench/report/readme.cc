#include "report/readme.h"

#include "report/markdown.h"

namespace sluice::bench {
namespace {

constexpr std::string_view kOp = "moe_layer", kModel = "gpt-oss-120b", kRouting = "uniform";
constexpr int64_t kCounts[] = {1, 8, 64, 256, 1024, 4096};

// "humming, triton-kernels at 8, 64": the figure's baselines that lack rows which Sluice has: all of them, or at the listed token counts.
std::string missing_of(const Figure& figure, const Panel& panel) {
  const Series* ours = series_named(panel, "sluice");
  std::string none, some;
  for (const std::string& impl : peers_of(figure)) {
    const Series* peer = series_named(panel, impl);
    std::string at;
    size_t missing = 0, wanted = 0;
    for (const int64_t tokens : kCounts) {
      if (!ours || !ours->at.contains(tokens)) continue;
      ++wanted;
      if (peer && peer->at.contains(tokens)) continue;
      ++missing;
      at += (at.empty() ? "" : ", ") + std::to_string(tokens);
    }
    if (missing > 0 && missing == wanted) none += (none.empty() ? "" : ", ") + impl;
    if (missing > 0 && missing < wanted) some += (some.empty() ? "" : "; ") + impl + " at " + at;
  }
  return none + (none.empty() || some.empty() ? "" : "; ") + some;
}

}  // namespace

std::string readme_table(const std::vector<Figure>& figures) {
  std::string rows, notes;
  std::set<std::string> versions;
  for (const Figure& figure : figures)
    for (const Panel& panel : figure.panels) {
      const Conditions c = conditions_of(panel);
      const Series* ours = series_named(panel, "sluice");
      if (panel.op != kOp || panel.model != kModel || c.routing != kRouting || !ours) continue;
      std::vector<std::string> mine = {c.pace + ", Sluice"}, peer = {c.pace + ", fastest other library"};
      for (const int64_t tokens : kCounts) {
        const auto at = ours->at.find(tokens);
        mine.push_back(at == ours->at.end() ? "" : us_text(at->second.median_us));
        const Series* fastest = fastest_peer(panel, tokens);
        peer.push_back(fastest ? us_text(fastest->at.at(tokens).median_us) + " " + fastest->impl : "");
      }
      rows += line_of(mine) + line_of(peer);
      versions.insert(ours->versions.begin(), ours->versions.end());
      notes += "Other libraries, " + c.pace + ": " + joined(peers_of(panel), ", ") + ".";
      const std::string missing = missing_of(figure, panel);
      notes += missing.empty() ? "\n" : " No rows of " + missing + ".\n";
    }
  if (rows.empty()) return "";
  std::vector<std::string> head = {"tokens"};
  for (const int64_t tokens : kCounts) head.push_back(std::to_string(tokens));
  return line_of(head) + rule_of(head.size(), 1) + rows + "\nMicroseconds, medians; routing " +
         std::string(kRouting) + "; Sluice at " + joined(versions, ", ") + ".\n" + notes;
}

Result<std::string> with_table(const std::string& readme, const std::string& table) {
  const size_t begin = readme.find(kReadmeBegin);
  const size_t end = readme.find(kReadmeEnd, begin == std::string::npos ? 0 : begin);
  for (const auto& [at, mark] : {std::pair{begin, kReadmeBegin}, {end, kReadmeEnd}})
    if (at == std::string::npos)
      return Status{Code::kCorrupt, "wanted the line '" + std::string(mark.substr(0, mark.size() - 1)) +
                                        "' in the README, found none"};
  return readme.substr(0, begin + kReadmeBegin.size()) + table + readme.substr(end);
}

}  // namespace sluice::bench
