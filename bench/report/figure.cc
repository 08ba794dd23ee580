#include "report/figure.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

namespace sluice::bench {
namespace {

constexpr double kCellWidth = 500, kCellHeight = 310, kEdge = 24;
constexpr double kLegendTop = 72, kLegendLine = 22;
// Where a panel's axes lie inside its cell.
constexpr double kLeft = 46, kRight = 14, kTop = 34, kBottom = 34;

constexpr Colour kInk = {34, 40, 49}, kFaint = {110, 118, 129}, kGrid = {228, 231, 235},
                 kPaper = {255, 255, 255};
constexpr Colour kFloor = {222, 225, 230}, kFloorLine = {140, 146, 156};
// Sluice first; then colors that readers with color blindness can distinguish (Okabe and Ito), darker on thin lines.
constexpr Colour kOurs[] = {{0, 84, 166}, {64, 156, 255}, {0, 40, 92}};
constexpr Colour kPeers[] = {{213, 94, 0},   {0, 145, 105},  {190, 100, 155}, {214, 148, 0},
                             {110, 90, 190}, {120, 120, 40}, {150, 60, 50},   {60, 60, 60}};

struct Look {
  std::string impl;
  Colour colour;
  double width = 1.5;
  Dash dash = Dash::kSolid;
};

// One look per implementation, in all panels of the figure.
std::vector<Look> looks_of(const Figure& figure) {
  std::set<std::string> ours, peers;
  for (const Panel& p : figure.panels)
    for (const Series& s : p.series) (s.ours ? ours : peers).insert(s.impl);
  std::vector<Look> out;
  size_t i = 0;
  for (const std::string& impl : ours) {  // "sluice" sorts before its variants
    out.push_back(
        {impl, kOurs[i % std::size(kOurs)], i == 0 ? 3.2 : 2, i == 0 ? Dash::kSolid : Dash::kDashed});
    ++i;
  }
  i = 0;
  for (const std::string& impl : peers) {
    const Dash dash = i < std::size(kPeers) ? Dash::kSolid : Dash::kDotted;
    out.push_back({impl, kPeers[i++ % std::size(kPeers)], 1.6, dash});
  }
  return out;
}

// An upper bound of a letter's width, relative to the type size.
double width_of(std::string_view text, double size) { return 0.64 * size * static_cast<double>(text.size()); }

struct LegendEntry {
  Point at;
  const Look* look = nullptr;  // null: the byte and flop floors
};

struct Legend {
  std::vector<LegendEntry> entries;
  double bottom = 0;
};

constexpr std::string_view kFloorWords = "floor";

bool has_floor(const Figure& figure) {
  return std::any_of(figure.panels.begin(), figure.panels.end(),
                     [](const Panel& p) { return !p.floor_us.empty(); });
}

Legend legend_of(const Figure& figure, const std::vector<Look>& looks, double width) {
  constexpr double kSample = 30, kGap = 22;
  Legend out;
  double x = kEdge, y = kLegendTop;
  const auto place = [&](std::string_view name, const Look* look) {
    const double w = kSample + 6 + width_of(name, 12) + kGap;
    if (x > kEdge && x + w > width - kEdge) x = kEdge, y += kLegendLine;
    out.entries.push_back({{x, y}, look});
    x += w;
  };
  for (const Look& look : looks) place(look.impl, &look);
  if (has_floor(figure)) place(kFloorWords, nullptr);
  out.bottom = y + 12;
  return out;
}

// A logarithmic axis from `low` to `high` over `from` to `to` pixels.
struct Axis {
  double low = 1, high = 10, from = 0, to = 1;
  double at(double value) const { return from + (to - from) * std::log(value / low) / std::log(high / low); }
};

std::string tokens_text(int64_t n) {
  return n >= 1024 && n % 1024 == 0 ? std::to_string(n / 1024) + "k" : std::to_string(n);
}

std::string tick_text(double value) {
  std::string out = std::to_string(value < 1 ? std::lround(value * 10) : std::lround(value));
  return value < 1 ? "0." + out : out;
}

// 1, 2 and 5 times every power of ten from `low` to `high`, inclusive.
std::vector<double> steps_between(double low, double high) {
  std::vector<double> out;
  for (int power = -1; power < 8; ++power)
    for (const double digit : {1.0, 2.0, 5.0}) {
      const double value = digit * std::pow(10.0, power);
      if (value >= low * 0.999 && value <= high * 1.001) out.push_back(value);
    }
  return out;
}

class PanelDrawing {
 public:
  // `common`: the conditions that the figure states for all its panels.
  PanelDrawing(const Panel& panel, const Axes& axes, const Conditions& common, const std::vector<Look>& looks,
               Point corner, Canvas& canvas)
      : panel_(panel),
        axes_(axes),
        title_(title_of(panel, common)),
        looks_(looks),
        canvas_(canvas),
        corner_(corner) {
    for (const auto& [tokens, us] : panel.floor_us) counts_.insert(tokens);
    for (const Series& s : panel.series)
      for (const auto& [tokens, time] : s.at) counts_.insert(tokens);
    x_ = {1, 2, corner.x + kLeft, corner.x + kCellWidth - kRight};
    y_ = {1, 2, corner.y + kCellHeight - kBottom, corner.y + kTop};
    fit();
  }

  void draw() {
    grid();
    floor();
    for (size_t i = panel_.series.size(); i-- > 0;) series(panel_.series[i]);  // Sluice on top
    canvas_.text({x_.from, corner_.y + 20}, title_, {13, Align::kLeft, Weight::kBold, kInk});
    canvas_.text({x_.to, corner_.y + 20}, axes_.y, {11, Align::kRight, Weight::kNormal, kFaint});
    canvas_.text({x_.to, corner_.y + kCellHeight - 2}, axes_.x, {11, Align::kRight, Weight::kNormal, kFaint});
  }

 private:
  void fit() {
    double low = std::numeric_limits<double>::infinity(), high = 0;
    for (const auto& [tokens, us] : panel_.floor_us) low = std::min(low, us), high = std::max(high, us);
    for (const Series& s : panel_.series)
      for (const auto& [tokens, time] : s.at)
        low = std::min(low, time.p10_us), high = std::max(high, time.p90_us);
    low /= axes_.us_per_unit, high /= axes_.us_per_unit;
    const std::vector<double> all = steps_between(0.1, 5e7);
    for (const double step : all)
      if (step <= low) y_.low = step;
    for (size_t i = all.size(); i-- > 0;)
      if (all[i] >= high) y_.high = all[i];
    if (low < all.front()) y_.low = low;
    if (y_.high <= y_.low) y_.high = y_.low * 10;
    x_.low = static_cast<double>(*counts_.begin());
    x_.high = static_cast<double>(*counts_.rbegin());
    if (x_.high <= x_.low) x_.high = x_.low * 2;
  }

  void grid() {
    const TextStyle faint = {11, Align::kCentre, Weight::kNormal, kFaint};
    for (double tokens = 1; tokens <= x_.high;
         tokens *= 4) {  // every second power of two, so that labels do not overlap
      if (tokens < x_.low) continue;
      const Point ends[] = {{x_.at(tokens), y_.from}, {x_.at(tokens), y_.to}};
      canvas_.line(ends, kGrid, 1, Dash::kSolid);
      canvas_.text({x_.at(tokens), y_.from + 16}, tokens_text(static_cast<int64_t>(tokens)), faint);
    }
    for (const double us : steps_between(y_.low, y_.high)) {
      const Point ends[] = {{x_.from, y_.at(us)}, {x_.to, y_.at(us)}};
      canvas_.line(ends, kGrid, 1, Dash::kSolid);
      canvas_.text({x_.from - 6, y_.at(us) + 4}, tick_text(us), {11, Align::kRight, Weight::kNormal, kFaint});
    }
  }

  void floor() {
    if (panel_.floor_us.empty()) return;
    std::vector<Point> corners;
    for (const auto& [tokens, us] : panel_.floor_us)
      corners.push_back({x_.at(static_cast<double>(tokens)), y_at(us)});
    corners.push_back({corners.back().x, y_.from});
    corners.push_back({corners.front().x, y_.from});
    canvas_.area(corners, kFloor);
    floor_line(panel_.bytes_us, Dash::kDashed);
    floor_line(panel_.flops_us, Dash::kDotted);
  }

  // The byte floor or the flop floor, clipped to the panel.
  void floor_line(const std::map<int64_t, double>& floor, Dash dash) {
    std::vector<Point> points;
    for (const auto& [tokens, us] : floor)
      if (us >= y_.low) points.push_back({x_.at(static_cast<double>(tokens)), y_at(us)});
    if (points.size() > 1) canvas_.line(points, kFloorLine, 1.2, dash);
  }

  // A line joins the points of adjacent token counts, and breaks where a row is missing.
  void series(const Series& s) {
    const Look& look =
        *std::find_if(looks_.begin(), looks_.end(), [&](const Look& l) { return l.impl == s.impl; });
    std::vector<std::pair<int64_t, Time>> run;
    for (const int64_t tokens : counts_) {
      const auto at = s.at.find(tokens);
      if (at != s.at.end()) {
        run.push_back(*at);
      } else {
        piece(run, look);
        run.clear();
      }
    }
    piece(run, look);
  }

  void piece(const std::vector<std::pair<int64_t, Time>>& run, const Look& look) {
    std::vector<Point> middle, band;
    for (const auto& [tokens, time] : run) {
      const double x = x_.at(static_cast<double>(tokens));
      middle.push_back({x, y_at(time.median_us)});
      band.push_back({x, y_at(time.p90_us)});
    }
    for (size_t i = run.size(); i-- > 0;) band.push_back({middle[i].x, y_at(run[i].second.p10_us)});
    if (run.size() > 1) {
      Colour pale = look.colour;
      pale.alpha = 0.18;
      canvas_.area(band, pale);
      canvas_.line(middle, look.colour, look.width, look.dash);
    }
    for (const Point& p : middle) canvas_.disc(p, look.width * 0.5 + 0.9, look.colour);
  }

  double y_at(double us) const { return y_.at(us / axes_.us_per_unit); }

  const Panel& panel_;
  const Axes& axes_;
  std::set<int64_t> counts_;  // of the x axis
  std::string title_;
  const std::vector<Look>& looks_;
  Canvas& canvas_;
  Point corner_;
  Axis x_, y_;
};

double columns_of(const Figure& figure) { return figure.panels.size() == 1 ? 1 : 2; }

}  // namespace

Size size_of(const Figure& figure) {
  const double columns = columns_of(figure), width = columns * kCellWidth + 2 * kEdge;
  const double rows = std::ceil(static_cast<double>(figure.panels.size()) / columns);
  return {width, legend_of(figure, looks_of(figure), width).bottom + rows * (kCellHeight + 14) + kEdge};
}

void draw(const Figure& figure, const Heading& heading, Canvas& canvas) {
  const Size size = size_of(figure);
  const Point page[] = {{0, 0}, {size.width, 0}, {size.width, size.height}, {0, size.height}};
  canvas.area(page, kPaper);
  canvas.text({kEdge, 32}, heading.title, {18, Align::kLeft, Weight::kBold, kInk});
  const Conditions common = common_conditions(figure);
  const std::string all = text_of(common);
  std::string below = std::string(figure.axes.below) + ": median, band p10 to p90; lower is better.";
  if (!heading.models.empty())
    below += " Panels: " + std::string(heading.models) + (all.empty() ? "." : "; ");
  if (!all.empty()) below += (heading.models.empty() ? " " : "") + all + ".";
  if (figure.rates.measured) below += " Floors: dashed bytes, dotted flops.";
  canvas.text({kEdge, 52}, below, {12, Align::kLeft, Weight::kNormal, kFaint});
  const std::vector<Look> looks = looks_of(figure);
  const Legend legend = legend_of(figure, looks, size.width);
  for (const LegendEntry& e : legend.entries) {
    const Point sample[] = {{e.at.x, e.at.y - 4}, {e.at.x + 30, e.at.y - 4}};
    if (e.look) {
      canvas.line(sample, e.look->colour, e.look->width, e.look->dash);
    } else {
      canvas.line(sample, kFloor, 10, Dash::kSolid);
    }
    const Weight weight = e.look && e.look->impl == "sluice" ? Weight::kBold : Weight::kNormal;
    canvas.text({e.at.x + 36, e.at.y}, e.look ? std::string_view(e.look->impl) : kFloorWords,
                {12, Align::kLeft, weight, kInk});
  }
  const auto columns = static_cast<size_t>(columns_of(figure));
  for (size_t i = 0; i < figure.panels.size(); ++i) {
    const Point corner = {kEdge + static_cast<double>(i % columns) * kCellWidth,
                          legend.bottom + static_cast<double>(i / columns) * (kCellHeight + 14)};
    PanelDrawing(figure.panels[i], figure.axes, common, looks, corner, canvas).draw();
  }
}

}  // namespace sluice::bench
