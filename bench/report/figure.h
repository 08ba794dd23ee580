// A figure: every panel of an operation, microseconds over tokens, both logarithmic.
#pragma once
#include "report/canvas.h"
#include "report/panels.h"

namespace sluice::bench {

struct Size {
  double width = 0, height = 0;
};
Size size_of(const Figure& figure);
// The canvas has size_of(figure). `title` stands above everything.
void draw(const Figure& figure, std::string_view title, Canvas& canvas);

}  // namespace sluice::bench
