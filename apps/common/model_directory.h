// Which directory a model's name on a command line means.
#pragma once
#include <string>

#include "base/status.h"

namespace sluice::apps {

// Where the shipped model lies: beside the program that runs, or where it was built.
Result<std::string> shipped_model();

// Nothing: the shipped one. A directory that has a config.json: itself. A model's folder in a Hugging Face cache, or the name of a model
// that is there (openai/gpt-oss-20b; HF_HUB_CACHE and HF_HOME say where the cache is): its snapshot. kInvalidArgument says what else was
// found and which directory to name: a whole cache, several snapshots, an adapter, one file of a model, nothing.
Result<std::string> model_directory(const std::string& named);

// What people call the model in a directory: openai/gpt-oss-20b of a snapshot, else the directory's own name.
std::string model_name(const std::string& directory);

}  // namespace sluice::apps
