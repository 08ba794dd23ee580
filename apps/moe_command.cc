#include <cstdio>
#include <iostream>

#include "apps/commands.h"
#include "apps/json.h"

namespace sluice::apps {

int moe(const MoeLayerOptions& options, Format format) {
  const Result<MoeLayerReport> report =
      run_moe_layer(options, format == Format::kText ? &std::cout : nullptr);
  if (!report.ok()) return wrong_use(report.status().message);
  if (format == Format::kJson) std::fputs(moe_layer_json(report.value()).c_str(), stdout);
  return kExitOk;
}

}  // namespace sluice::apps
