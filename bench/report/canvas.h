// The drawing surface of figures.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace sluice::bench {

struct Point {
  double x = 0, y = 0;  // pixels from the upper left corner
};

struct Colour {
  uint8_t r = 0, g = 0, b = 0;
  double alpha = 1;
};

enum class Dash : uint8_t { kSolid, kDashed, kDotted };
enum class Align : uint8_t { kLeft, kCentre, kRight };
enum class Weight : uint8_t { kNormal, kBold };

struct TextStyle {
  double size = 12;
  Align align = Align::kLeft;
  Weight weight = Weight::kNormal;
  Colour colour = {};
};

class Canvas {
 public:
  virtual ~Canvas() = default;
  virtual void area(std::span<const Point> corners, Colour colour) = 0;
  virtual void line(std::span<const Point> points, Colour colour, double width, Dash dash) = 0;
  virtual void disc(Point centre, double radius, Colour colour) = 0;
  // `at` is on the baseline of the letters.
  virtual void text(Point at, std::string_view utf8, const TextStyle& style) = 0;
  // Returns the whole file. Nothing may be drawn afterwards.
  virtual Result<std::string> finish() = 0;
};

// Text is stored as text, so that it can be searched and the bytes do not depend on this machine's fonts.
std::unique_ptr<Canvas> svg_canvas(double width, double height, std::string_view title);

}  // namespace sluice::bench
