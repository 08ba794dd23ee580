#include "apps/bench/bench_model.h"
#include "apps/common/json.h"

namespace sluice::apps {

std::string bench_json(const BenchReport& r) {
  OrderedJson rows = OrderedJson::array();
  for (const BenchRow& b : r.rows) {
    rows.push_back({{"op", b.op},
                    {"pace", b.pace},
                    {"sequences", b.sequences},
                    {"context", b.context},
                    {"first_token_ms", b.first_token_ms},
                    {"prompt_tokens_per_s", b.prompt_tokens_per_s},
                    {"step_ms", b.step_ms},
                    {"step_ms_p10", b.step_ms_p10},
                    {"step_ms_p90", b.step_ms_p90},
                    {"tokens_per_s", b.tokens_per_s},
                    {"tokens_per_sequence", b.tokens_per_sequence},
                    {"experts", b.experts},
                    {"floor_bytes", b.floor.bytes()},
                    {"floor_flops", b.floor.flops},
                    {"share_of_floor", b.share_of_floor}});
  }
  return json_text({{"model", r.model},
                    {"device", r.device},
                    {"weight_bytes", r.weight_bytes},
                    {"active_bytes", r.active_bytes},
                    {"experts", r.experts},
                    {"load_seconds", r.load_seconds},
                    {"read_bytes_per_us", r.read_bytes_per_us},
                    {"rows", rows}});
}

}  // namespace sluice::apps
