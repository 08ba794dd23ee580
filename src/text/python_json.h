// JSON as Python writes it, which is what chat templates show to models.
#pragma once
#include <string>

#include "base/json.h"

namespace sluice {

// json.dumps(value, ensure_ascii=False): transformers' tojson. A number beyond 64 bits is what a double makes of it.
std::string python_json(const OrderedJson& value);

}  // namespace sluice
