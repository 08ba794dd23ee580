#include "apps/common/json.h"
#include "apps/draft/draft.h"

namespace sluice::apps {

std::string draft_json(const DraftReport& report) {
  return json_text({{"model", report.model},
                    {"layer", report.layer},
                    {"device", report.device},
                    {"experts", report.experts},
                    {"router_dtype", report.router_dtype},
                    {"weight_bytes", report.weight_bytes},
                    {"load_seconds", report.load_seconds},
                    {"run", timings_json(report.timings)}});
}

}  // namespace sluice::apps
