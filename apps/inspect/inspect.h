// What a checkpoint holds, and what Sluice will do with each tensor.
#pragma once
#include <string>
#include <vector>

#include "apps/common/commands.h"
#include "base/status.h"

namespace sluice::apps {

struct InspectedTensor {
  std::string name, type, file;  // type with shape: "BF16[2880, 4096]"
  int64_t bytes = 0;
  std::string use;    // "layer 3 router: copied"; "not used" where nothing reads it
  std::string wrong;  // why it cannot be used; empty: nothing
};
struct Inspection {
  std::string path, architecture;  // empty: no config.json that Sluice knows
  std::string note;                // why there is no architecture
  std::vector<InspectedTensor> tensors;
  std::vector<std::string> missing;  // what the architecture needs and the files lack
  int64_t bytes = 0;
  int64_t wrong() const;
};

// Opens the files' headers alone; no tensor is read. Errors as weights/checkpoint.h.
Result<Inspection> inspect(const std::string& path);

std::string inspection_json(const Inspection& inspection);
// As a command: kExitNo if tensors are wrong or missing. Empty: the model that ships.
int inspect_command(const std::string& model, Format format);

}  // namespace sluice::apps
