// Resolves a model's name on the command line to a directory.
#pragma once
#include <string>

#include "base/status.h"

namespace sluice::apps {

// The directories of the shipped model and of its draft head: in share/sluice/ of the installation, or in the source tree of the build.
Result<std::string> shipped_model();
Result<std::string> shipped_draft_head();
// true for the path of the shipped model, and for an empty name
bool is_shipped_model(const std::string& named);

// `named` may be empty (the shipped model), a directory with config.json, a model's folder in a Hugging Face cache, or the name of a
// cached model such as openai/gpt-oss-20b. Cached models resolve to their snapshot; HF_HUB_CACHE and HF_HOME locate the cache.
// kInvalidArgument: `named` is a whole cache, a folder with several snapshots, an adapter, a single file of a model, or does not exist. The
// message says what was found and which directory to name.
Result<std::string> model_directory(const std::string& named);

// The display name of a model's directory: openai/gpt-oss-20b for a snapshot, else the directory's own name.
std::string model_name(const std::string& directory);

}  // namespace sluice::apps
