// Draws a figure: one panel per model of an operation, microseconds over tokens, both axes logarithmic.
#pragma once
#include "report/canvas.h"
#include "report/panels.h"

namespace sluice::bench {

struct Size {
  double width = 0, height = 0;
};
Size size_of(const Figure& figure);
struct Heading {
  std::string_view title;
  std::string_view models = {};  // the meaning of a panel's name; may be empty
};
// The canvas has size_of(figure).
void draw(const Figure& figure, const Heading& heading, Canvas& canvas);

}  // namespace sluice::bench
