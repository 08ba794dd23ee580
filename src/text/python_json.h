// JSON in Python's notation, in which chat templates show it to models.
#pragma once
#include <string>

#include "base/json.h"

namespace sluice {

// Like Python's json.dumps(value, ensure_ascii=False), which is transformers' filter tojson. Numbers beyond 64 bits are rounded to doubles.
std::string python_json(const OrderedJson& value);

}  // namespace sluice
