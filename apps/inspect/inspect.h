// Lists a checkpoint's tensors and how Sluice uses each of them.
#pragma once
#include <string>
#include <vector>

#include "apps/common/commands.h"
#include "base/status.h"

namespace sluice::apps {

struct InspectedTensor {
  std::string name, type, file;  // type with shape: "BF16[2880, 4096]"
  int64_t bytes = 0;
  std::string use;    // "layer 3 router: copied"; "not used" if nothing reads it
  std::string wrong;  // why the tensor is unusable; empty: it is usable
};
struct Inspection {
  std::string path, architecture;  // empty: Sluice does not support the config.json, or there is none
  std::string note;                // why there is no architecture
  std::vector<InspectedTensor> tensors;
  std::vector<std::string> missing;  // tensors that the architecture needs and the files lack
  int64_t bytes = 0;
  int64_t wrong() const;
};

// Reads only the files' headers, no tensors. Errors as in weights/checkpoint.h.
Result<Inspection> inspect(const std::string& path);

std::string inspection_json(const Inspection& inspection);
// The command: kExitNo if tensors are wrong or missing. An empty `model` is the shipped one.
int inspect_command(const std::string& model, Format format);

}  // namespace sluice::apps
