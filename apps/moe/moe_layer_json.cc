#include "apps/common/json.h"
#include "apps/moe/moe_layer.h"

namespace sluice::apps {

std::string moe_layer_json(const MoeLayerReport& report) {
  OrderedJson checks = OrderedJson::array();
  for (const StageCheck& c : report.checks)
    checks.push_back({{"stage", c.stage}, {"kernel", c.kernel}, {"share_of_bound", c.worst}});
  return json_text({{"model", report.model},
                    {"device", report.device},
                    {"layout", report.layout},
                    {"weight_bytes", static_cast<int64_t>(report.weight_bytes)},
                    {"check", checks},
                    {"run", timings_json(report.timings)}});
}

}  // namespace sluice::apps
