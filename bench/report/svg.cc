#include <cstdio>

#include "report/canvas.h"

namespace sluice::bench {
namespace {

// To a tenth of a pixel, with no more digits than needed.
std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  std::string out = text;
  if (out.ends_with(".0")) out.resize(out.size() - 2);
  return out == "-0" ? "0" : out;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else {
      out += c;
    }
  }
  return out;
}

// `name` is "fill" or "stroke".
std::string paint(const char* name, Colour c) {
  char text[64];
  std::snprintf(text, sizeof text, " %s=\"#%02x%02x%02x\"", name, c.r, c.g, c.b);
  std::string out = text;
  if (c.alpha < 1) {
    std::snprintf(text, sizeof text, " %s-opacity=\"%.2f\"", name, c.alpha);
    out += text;
  }
  return out;
}

class SvgCanvas final : public Canvas {
 public:
  SvgCanvas(double width, double height, std::string_view title) {
    const std::string w = number(width), h = number(height);
    out_ = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + w + "\" height=\"" + h +
           "\" viewBox=\"0 0 " + w + " " + h +
           "\" role=\"img\" font-family=\"DejaVu Sans, Helvetica, Arial, sans-serif\">\n<title>" +
           escaped(title) + "</title>\n";
  }

  void area(std::span<const Point> corners, Colour colour) override {
    out_ += "<polygon points=\"" + points(corners) + "\"" + paint("fill", colour) + "/>\n";
  }

  void line(std::span<const Point> at, Colour colour, double width, Dash dash) override {
    out_ += "<polyline points=\"" + points(at) + "\" fill=\"none\"" + paint("stroke", colour) +
            " stroke-width=\"" + number(width) + "\" stroke-linejoin=\"round\"";
    if (dash == Dash::kDashed) out_ += " stroke-dasharray=\"6 4\"";
    if (dash == Dash::kDotted) out_ += " stroke-dasharray=\"2 3\"";
    out_ += "/>\n";
  }

  void disc(Point centre, double radius, Colour colour) override {
    out_ += "<circle cx=\"" + number(centre.x) + "\" cy=\"" + number(centre.y) + "\" r=\"" + number(radius) +
            "\"" + paint("fill", colour) + "/>\n";
  }

  void text(Point at, std::string_view utf8, const TextStyle& style) override {
    out_ += "<text x=\"" + number(at.x) + "\" y=\"" + number(at.y) + "\" font-size=\"" + number(style.size) +
            "\"" + paint("fill", style.colour);
    if (style.align == Align::kCentre) out_ += " text-anchor=\"middle\"";
    if (style.align == Align::kRight) out_ += " text-anchor=\"end\"";
    if (style.weight == Weight::kBold) out_ += " font-weight=\"bold\"";
    out_ += ">" + escaped(utf8) + "</text>\n";
  }

  Result<std::string> finish() override { return out_ + "</svg>\n"; }

 private:
  static std::string points(std::span<const Point> at) {
    std::string out;
    for (const Point& p : at) out += (out.empty() ? "" : " ") + number(p.x) + "," + number(p.y);
    return out;
  }

  std::string out_;
};

}  // namespace

std::unique_ptr<Canvas> svg_canvas(double width, double height, std::string_view title) {
  return std::make_unique<SvgCanvas>(width, height, title);
}

}  // namespace sluice::bench
