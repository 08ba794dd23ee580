#include "apps/common/json.h"

namespace sluice::apps {

std::string json_text(const OrderedJson& json) {
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

OrderedJson device_json(const DeviceInfo& d) {
  return {{"name", d.name},
          {"backend", text(d.backend)},
          {"text", text(d)},
          {"cores", d.cores},
          {"mem_bytes_per_us", d.mem_bytes_per_us},
          {"bf16_flops_per_us", d.bf16_flops_per_us},
          {"f32_flops_per_us", d.f32_flops_per_us},
          {"launch_us", d.launch_us}};
}

OrderedJson timings_json(const std::vector<StepTiming>& timings) {
  OrderedJson out = OrderedJson::array();
  for (const StepTiming& t : timings) {
    OrderedJson kernels = OrderedJson::object();
    for (const auto& [stage, kernel] : t.kernels) kernels[stage] = kernel;
    out.push_back({{"tokens", t.tokens},
                   {"median_ms", t.median_ms},
                   {"fastest_ms", t.fastest_ms},
                   {"slowest_ms", t.slowest_ms},
                   {"same_bits", t.same_bits},
                   {"kernels", kernels}});
  }
  return out;
}

}  // namespace sluice::apps
