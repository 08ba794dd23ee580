#include <cairo.h>

#include <cmath>

#include "report/canvas.h"

namespace sluice::bench {
namespace {

class PngCanvas final : public Canvas {
 public:
  PngCanvas(double width, double height, double scale)
      : surface_(cairo_image_surface_create(CAIRO_FORMAT_RGB24, static_cast<int>(std::ceil(width * scale)),
                                            static_cast<int>(std::ceil(height * scale)))),
        cairo_(cairo_create(surface_)) {
    cairo_scale(cairo_, scale, scale);
    cairo_set_line_join(cairo_, CAIRO_LINE_JOIN_ROUND);
    // Grey edges and no fitting to pixels, whatever this machine's screen would like.
    cairo_font_options_t* fonts = cairo_font_options_create();
    cairo_font_options_set_antialias(fonts, CAIRO_ANTIALIAS_GRAY);
    cairo_font_options_set_hint_style(fonts, CAIRO_HINT_STYLE_NONE);
    cairo_font_options_set_hint_metrics(fonts, CAIRO_HINT_METRICS_OFF);
    cairo_set_font_options(cairo_, fonts);
    cairo_font_options_destroy(fonts);
  }
  ~PngCanvas() override {
    cairo_destroy(cairo_);
    cairo_surface_destroy(surface_);
  }
  PngCanvas(const PngCanvas&) = delete;
  PngCanvas& operator=(const PngCanvas&) = delete;

  void area(std::span<const Point> corners, Colour colour) override {
    path(corners);
    cairo_close_path(cairo_);
    paint(colour);
    cairo_fill(cairo_);
  }

  void line(std::span<const Point> at, Colour colour, double width, Dash dash) override {
    static constexpr double kDashed[] = {6, 4}, kDotted[] = {2, 3};
    path(at);
    paint(colour);
    cairo_set_line_width(cairo_, width);
    cairo_set_dash(cairo_, dash == Dash::kDotted ? kDotted : kDashed, dash == Dash::kSolid ? 0 : 2, 0);
    cairo_stroke(cairo_);
  }

  void disc(Point centre, double radius, Colour colour) override {
    cairo_new_path(cairo_);
    cairo_arc(cairo_, centre.x, centre.y, radius, 0, 2 * M_PI);
    paint(colour);
    cairo_fill(cairo_);
  }

  void text(Point at, std::string_view utf8, const TextStyle& style) override {
    const std::string ended(utf8);
    cairo_select_font_face(cairo_, "DejaVu Sans", CAIRO_FONT_SLANT_NORMAL,
                           style.weight == Weight::kBold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(cairo_, style.size);
    cairo_text_extents_t extents;
    cairo_text_extents(cairo_, ended.c_str(), &extents);
    const double share = style.align == Align::kLeft ? 0 : style.align == Align::kCentre ? 0.5 : 1;
    paint(style.colour);
    cairo_move_to(cairo_, at.x - share * extents.x_advance, at.y);
    cairo_show_text(cairo_, ended.c_str());
  }

  Result<std::string> finish() override {
    std::string out;
    const auto append = [](void* to, const unsigned char* data, unsigned int length) {
      static_cast<std::string*>(to)->append(reinterpret_cast<const char*>(data), length);
      return CAIRO_STATUS_SUCCESS;
    };
    cairo_status_t status = cairo_status(cairo_);
    if (status == CAIRO_STATUS_SUCCESS) status = cairo_surface_write_to_png_stream(surface_, append, &out);
    if (status != CAIRO_STATUS_SUCCESS)
      return Status{Code::kIo, std::string("png: cairo: ") + cairo_status_to_string(status)};
    return out;
  }

 private:
  void paint(Colour c) { cairo_set_source_rgba(cairo_, c.r / 255.0, c.g / 255.0, c.b / 255.0, c.alpha); }
  void path(std::span<const Point> at) {
    cairo_new_path(cairo_);
    for (const Point& p : at) cairo_line_to(cairo_, p.x, p.y);
  }

  cairo_surface_t* surface_;
  cairo_t* cairo_;
};

}  // namespace

std::unique_ptr<Canvas> png_canvas(double width, double height, double scale) {
  return std::make_unique<PngCanvas>(width, height, scale);
}

}  // namespace sluice::bench
