#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "apps/common/model_directory.h"
#include "apps/inspect/inspect.h"
#include "base/printable.h"

namespace sluice::apps {
namespace {

void print_inspection(Inspection i) {
  // Names come from files and may contain control characters, so they are escaped.
  i.path = printable(i.path), i.note = printable(i.note);
  for (InspectedTensor& t : i.tensors) t.name = printable(t.name);
  size_t name_width = 4, type_width = 4;
  for (const InspectedTensor& t : i.tensors) {
    name_width = std::max(name_width, t.name.size());
    type_width = std::max(type_width, t.type.size());
  }
  const auto width = [](size_t n) { return static_cast<int>(n); };
  std::printf("%-*s  %-*s %14s  %s\n", width(name_width), "name", width(type_width), "type", "bytes", "use");
  for (const InspectedTensor& t : i.tensors)
    std::printf("%-*s  %-*s %14lld  %s%s%s\n", width(name_width), t.name.c_str(), width(type_width),
                t.type.c_str(), static_cast<long long>(t.bytes), t.use.c_str(),
                t.wrong.empty() ? "" : "  WRONG: ", t.wrong.c_str());
  for (const std::string& name : i.missing) std::printf("missing: %s\n", name.c_str());
  std::printf("\n%s: %zu tensors, %lld bytes; ", i.path.c_str(), i.tensors.size(),
              static_cast<long long>(i.bytes));
  if (i.architecture.empty()) {
    std::printf("no model that Sluice runs: %s\n", i.note.c_str());
  } else {
    std::printf("%s, %lld wrong, %zu missing\n", i.architecture.c_str(), static_cast<long long>(i.wrong()),
                i.missing.size());
  }
}

}  // namespace

int inspect_command(const std::string& model, Format format) {
  std::string path = model;
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    const auto directory = model_directory(model);
    if (!directory.ok()) return wrong_use(directory.status().message);
    path = directory.value();
  }
  const auto inspection = inspect(path);
  if (!inspection.ok()) return wrong_use(inspection.status().message);
  if (format == Format::kJson) {
    const std::string json = inspection_json(inspection.value());
    std::fwrite(json.data(), 1, json.size(), stdout);
  } else {
    print_inspection(inspection.value());
  }
  return inspection.value().wrong() == 0 && inspection.value().missing.empty() ? kExitOk : kExitNo;
}

}  // namespace sluice::apps
