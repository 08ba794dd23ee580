#include <cstdio>
#include <iostream>

#include "apps/moe/moe_digest.h"
#include "apps/moe/moe_layer.h"

namespace sluice::apps {

int moe(const MoeLayerOptions& options, Format format) {
  const Result<MoeLayerReport> report =
      run_moe_layer(options, format == Format::kText ? &std::cout : nullptr);
  if (!report.ok()) return wrong_use(report.status().message);
  if (format == Format::kJson) std::fputs(moe_layer_json(report.value()).c_str(), stdout);
  return kExitOk;
}

int moe_digest(MoeDigestOptions options, const std::string& device) {
  if (device != "cpu" && device != "cuda")
    return wrong_use("--device: wanted cpu or cuda, found '" + device + "'");
  options.backend = device == "cuda" ? Backend::kCuda : Backend::kCpu;
  const Status status = write_moe_digests(options, std::cout);
  return status.ok() ? kExitOk : wrong_use(status.message);
}

}  // namespace sluice::apps
