// JSON in Python's notation, which chat templates show to models.
#pragma once
#include <string>

#include "base/json.h"

namespace sluice {

// json.dumps(value, ensure_ascii=False), transformers' tojson. Numbers beyond 64 bits are rounded to doubles.
std::string python_json(const OrderedJson& value);

}  // namespace sluice
