#include <cstdio>
#include <iostream>

#include "apps/draft/draft.h"

namespace sluice::apps {

int draft(const DraftOptions& options, Format format) {
  const Result<DraftReport> report = run_draft(options, format == Format::kText ? &std::cout : nullptr);
  if (!report.ok()) return wrong_use(report.status().message);
  if (format == Format::kJson) std::fputs(draft_json(report.value()).c_str(), stdout);
  return kExitOk;
}

}  // namespace sluice::apps
