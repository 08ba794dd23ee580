#include "text/python_json.h"

#include <charconv>
#include <cmath>
#include <cstdlib>

namespace sluice {
namespace {

// The fewest digits that give the same double again, with an exponent if the absolute value is at least 1e16 or below 1e-4.
std::string python_float(double value) {
  char scientific[64];
  const auto end =
      std::to_chars(scientific, scientific + sizeof scientific, value, std::chars_format::scientific);
  const std::string text(scientific, end.ptr);
  const size_t e = text.find('e');
  if (e == text.npos) return text;  // infinity or NaN
  const int exponent = std::atoi(text.c_str() + e + 1);
  if (exponent < -4 || exponent >= 16) return text;
  char fixed[64];
  const auto fixed_end = std::to_chars(fixed, fixed + sizeof fixed, value, std::chars_format::fixed);
  std::string out(fixed, fixed_end.ptr);
  if (out.find('.') == out.npos) out += ".0";
  return out;
}

void append(const OrderedJson& value, std::string* out) {
  if (value.is_object()) {
    *out += '{';
    bool first = true;
    for (const auto& [key, member] : value.items()) {
      *out += first ? "" : ", ";
      first = false;
      append(OrderedJson(key), out);
      *out += ": ";
      append(member, out);
    }
    *out += '}';
  } else if (value.is_array()) {
    *out += '[';
    bool first = true;
    for (const OrderedJson& item : value) {
      *out += first ? "" : ", ";
      first = false;
      append(item, out);
    }
    *out += ']';
  } else if (value.is_number_float()) {
    *out += python_float(value.get<double>());
  } else {
    *out += value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  }
}

}  // namespace

std::string python_json(const OrderedJson& value) {
  std::string out;
  append(value, &out);
  return out;
}

}  // namespace sluice
