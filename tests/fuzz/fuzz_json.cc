// Arbitrary bytes as JSON: accepted only if the JSON library reads the same value; every reader returns for
// every value.
#include <cstdint>

#include "base/json.h"

namespace {

using sluice::Json;
using sluice::JsonAt;

void require(bool ok) {
  if (!ok) __builtin_trap();
}

void read_everything(const JsonAt& at) {
  (void)at.integer(-5, 5).ok();
  (void)at.number().ok();
  (void)at.boolean().ok();
  (void)at.string().ok();
  (void)at.integer("a", 0, 9, 1).ok();
  (void)at.number("a", 1.0).ok();
  (void)at.boolean("a", true).ok();
  (void)at.string("a", "b").ok();
  require(!at.wrong("nothing").ok());
  require(at.need_object().ok() == at.value().is_object());
  const auto items = at.items();
  require(items.ok() == at.value().is_array());
  if (items.ok())
    for (const JsonAt& item : items.value()) read_everything(item);
  if (!at.value().is_object()) return;
  for (const auto& [key, value] : at.value().items()) {
    const auto member = at.at(key);
    require(member.ok() && &member.value().value() == &value);
    read_everything(member.value());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto parsed = sluice::parse_json(text, "input");
  if (!parsed.ok()) {
    require(parsed.status().message.starts_with("input: "));
    return 0;
  }
  require(Json::accept(text) && Json::parse(text) == parsed.value());
  read_everything(JsonAt(parsed.value(), "input"));
  return 0;
}
