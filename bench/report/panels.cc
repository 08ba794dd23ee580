#include "report/panels.h"

#include <algorithm>

namespace sluice::bench {
namespace {

bool is_ours(std::string_view impl) { return impl == "sluice" || impl.starts_with("sluice-"); }

// Returns the element for which `same` holds, or appends the result of `make`.
template <class T, class Same, class Make>
T& find_or_add(std::vector<T>& list, Same same, Make make) {
  const auto found = std::find_if(list.begin(), list.end(), same);
  return found != list.end() ? *found : list.emplace_back(make());
}

struct ServingOp {
  std::string_view op;
  Axes axes;
};
constexpr ServingOp kServingOps[] = {{kServingOp, kServingAxes},       {"ttft", kServingAxes},
                                     {"tpot", kServingAxes},           {"itl", kServingAxes},
                                     {kOutputTokenOp, kTokenRateAxes}, {"cached_prompt", kPromptAxes}};

bool is_rate(const Row& r) { return r.op == "read" || r.op == "dense_8192"; }

}  // namespace

Rates rates_of(const std::vector<Row>& rows) {
  double bytes_per_us = 0, flops_per_us = 0;
  for (const Row& r : rows) {
    if (r.op == "read" && r.note == "burst") bytes_per_us = std::max(bytes_per_us, r.bytes / r.median_us);
    if (r.op == "dense_8192" && r.note == "sustained")
      flops_per_us = std::max(flops_per_us, r.flops / r.median_us);
  }
  if (bytes_per_us == 0 || flops_per_us == 0) return {};
  return {bytes_per_us, flops_per_us, true};
}

std::vector<Figure> figures_of(const std::vector<Row>& rows) {
  const Rates rates = rates_of(rows);
  std::vector<Figure> out;
  for (const Row& r : rows) {
    if (is_rate(r)) continue;
    Figure& figure = find_or_add(
        out, [&](const Figure& f) { return f.op == r.op; },
        [&] {
          return Figure{r.op, {}, rates, serving_axes(r.op).value_or(Axes{})};
        });
    const std::string_view note = compared_note(r.note);
    Panel& panel = find_or_add(
        figure.panels, [&](const Panel& p) { return p.model == r.model && p.note == note; },
        [&] {
          return Panel{r.op, r.model, std::string(note), {}, {}};
        });
    Series& series = find_or_add(
        panel.series, [&](const Series& s) { return s.impl == r.impl; },
        [&] {
          return Series{r.impl, is_ours(r.impl)};
        });
    series.versions.insert(r.version);
    series.at[r.tokens] = {r.median_us, r.p10_us, r.p90_us, std::string(remark_of(r.note))};
    if (serving_axes(r.op)) continue;
    panel.floor_us[r.tokens] = floor_us(r.bytes, r.flops, rates);
    if (!rates.measured) continue;
    panel.bytes_us[r.tokens] = rates.bytes_us(r.bytes);
    panel.flops_us[r.tokens] = rates.flops_us(r.flops);
  }
  for (Figure& figure : out)
    for (Panel& panel : figure.panels)
      std::sort(panel.series.begin(), panel.series.end(),
                [](const Series& a, const Series& b) { return a.ours != b.ours ? a.ours : a.impl < b.impl; });
  return out;
}

std::optional<Axes> serving_axes(std::string_view op) {
  for (const ServingOp& known : kServingOps)
    if (known.op == op) return known.axes;
  return {};
}

Conditions conditions_of(const Panel& panel) {
  if (serving_axes(panel.op)) return {.rest = panel.note};
  std::string_view note = panel.note;
  // Removes `word` from the start of the note, if it is there.
  const auto take = [&note](std::string_view word) {
    if (!note.starts_with(word) || (note.size() > word.size() && note[word.size()] != ' ')) return false;
    note.remove_prefix(std::min(word.size() + 1, note.size()));
    return true;
  };
  Conditions out = {.pace = "short replays"};
  if (panel.op == "router_route_fused" || panel.op == "chain") out.routing = "by router";
  if (panel.op == "route_group") out.routing = "by random logits";
  const auto take_last = [&note](std::string_view word) {
    if (!note.ends_with(word) || note.size() < word.size() + 2 || note[note.size() - word.size() - 1] != ' ')
      return false;
    note.remove_suffix(word.size() + 1);
    return true;
  };
  for (const char* pace : {"burst", "sustained"})
    if (take(pace) || take_last(pace)) out.pace = pace;
  const bool of_engine = panel.op == "decode" || panel.op == "prefill";  // "context 1024 zipf burst"
  for (const char* routing : {"uniform", "zipf", "by router"})
    if (take(routing) || (of_engine && take_last(routing))) out.routing = routing;
  out.rest = note;
  return out;
}

Conditions common_conditions(const Figure& figure) {
  if (figure.panels.empty()) return {};
  Conditions out = conditions_of(figure.panels.front());
  out.rest.clear();
  for (const Panel& panel : figure.panels) {
    const Conditions c = conditions_of(panel);
    if (c.pace != out.pace) out.pace.clear();
    if (c.routing != out.routing) out.routing.clear();
  }
  return out;
}

std::string text_of(const Conditions& c) {
  std::string out = c.pace;
  if (!c.routing.empty()) out += (out.empty() ? "routing " : ", routing ") + c.routing;
  if (!c.rest.empty()) out += (out.empty() ? "" : ", ") + c.rest;
  return out;
}

std::string title_of(const Panel& panel, const Conditions& common) {
  Conditions c = conditions_of(panel);
  if (c.pace == common.pace) c.pace.clear();
  if (c.routing == common.routing) c.routing.clear();
  const std::string text = text_of(c);
  return text.empty() ? panel.model : panel.model + ", " + text;
}

std::set<std::string> peers_of(const Panel& panel) {
  std::set<std::string> out;
  for (const Series& s : panel.series)
    if (!s.ours) out.insert(s.impl);
  return out;
}

std::set<std::string> peers_of(const Figure& figure) {
  std::set<std::string> out;
  for (const Panel& panel : figure.panels) out.merge(peers_of(panel));
  return out;
}

std::string missing_peers(const Figure& figure, const Panel& panel) {
  std::string out;
  for (const std::string& impl : peers_of(figure))
    if (!series_named(panel, impl)) out += (out.empty() ? "" : ", ") + impl;
  return out;
}

const Series* series_named(const Panel& panel, std::string_view impl) {
  for (const Series& s : panel.series)
    if (s.impl == impl) return &s;
  return nullptr;
}

const Series* fastest_peer(const Panel& panel, int64_t tokens) {
  const Series* out = nullptr;
  for (const Series& s : panel.series)
    if (!s.ours && s.at.contains(tokens) &&
        (!out || s.at.at(tokens).median_us < out->at.at(tokens).median_us))
      out = &s;
  return out;
}

std::optional<double> ratio_at(const Panel& panel, int64_t tokens) {
  const Series* sluice = series_named(panel, "sluice");
  const Series* fastest = fastest_peer(panel, tokens);
  if (!sluice || !sluice->at.contains(tokens) || !fastest) return {};
  return fastest->at.at(tokens).median_us / sluice->at.at(tokens).median_us;
}

}  // namespace sluice::bench
