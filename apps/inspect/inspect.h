// Lists the tensors of a checkpoint, and how Sluice uses them.
#pragma once
#include <string>
#include <vector>

#include "apps/common/commands.h"
#include "base/status.h"

namespace sluice::apps {

struct InspectedTensor {
  std::string name, type, file;  // `type` includes the shape, such as "BF16[2880, 4096]"
  int64_t bytes = 0;
  std::string use;    // such as "layer 3 router: copied"; "not used" if Sluice does not read the tensor
  std::string wrong;  // why the tensor cannot be used; empty if it can
};
struct Inspection {
  // architecture is empty if there is no config.json or Sluice does not support it
  std::string path, architecture;
  std::string note;  // why `architecture` is empty
  std::vector<InspectedTensor> tensors;
  std::vector<std::string> missing;  // tensors that the architecture needs and the files lack
  int64_t bytes = 0;
  int64_t wrong() const;
};

// Reads only the headers of the files, no tensors. Errors are the same as in weights/checkpoint.h.
Result<Inspection> inspect(const std::string& path);

std::string inspection_json(const Inspection& inspection);
// The command. Returns kExitNo if tensors are wrong or missing. An empty `model` means the shipped model.
int inspect_command(const std::string& model, Format format);

}  // namespace sluice::apps
