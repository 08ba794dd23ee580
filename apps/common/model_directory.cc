#include "apps/common/model_directory.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/json.h"

namespace sluice::apps {
namespace {

namespace fs = std::filesystem;

constexpr const char* kShipped = "models/sluice-16e-tiny";
constexpr const char* kShippedHead = "models/sluice-16e-tiny-eagle3";
// Prefix of a model's folder in a Hugging Face cache, such as models--openai--gpt-oss-20b.
constexpr std::string_view kFolder = "models--";
constexpr int64_t kSmallFile = 1 << 20;

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}
bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

std::vector<fs::path> sorted_directories(const fs::path& of) {
  std::vector<fs::path> out;
  std::error_code error;
  for (fs::directory_iterator it(of, error), end; !error && it != end; it.increment(error))
    if (is_folder(it->path())) out.push_back(it->path());
  std::sort(out.begin(), out.end());
  return out;
}

std::string replaced(std::string text, std::string_view what, std::string_view by) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += by.size())
    text.replace(at, what.size(), by);
  return text;
}

// Converts models--openai--gpt-oss-20b to "openai/gpt-oss-20b".
std::optional<std::string> name_of_folder(const std::string& folder) {
  if (!folder.starts_with(kFolder)) return {};
  return replaced(folder.substr(kFolder.size()), "--", "/");
}

fs::path cache_directory() {
  const auto variable = [](const char* name) -> std::optional<fs::path> {
    const char* value = std::getenv(name);
    return value && *value ? std::optional<fs::path>(value) : std::nullopt;
  };
  if (const auto hub = variable("HF_HUB_CACHE")) return *hub;
  if (const auto home = variable("HF_HOME")) return *home / "hub";
  if (const auto cache = variable("XDG_CACHE_HOME")) return *cache / "huggingface" / "hub";
  return variable("HOME").value_or("/") / ".cache" / "huggingface" / "hub";
}

// The snapshot in a cached model's folder: the snapshot that refs/main names, or the only snapshot.
Result<std::string> snapshot_of(const fs::path& folder) {
  const std::vector<fs::path> all = sorted_directories(folder / "snapshots");
  if (auto main = read_file((folder / "refs" / "main").string(), kSmallFile); main.ok()) {
    std::string commit = main.value().substr(0, main.value().find_first_of("\r\n "));
    if (!commit.empty() && is_folder(folder / "snapshots" / commit))
      return (folder / "snapshots" / commit).string();
  }
  if (all.size() == 1) return all.front().string();
  std::string found;
  for (const fs::path& snapshot : all) found += (found.empty() ? "" : ", ") + snapshot.string();
  return invalid(folder.string() + ": wanted one snapshot of a model, found " +
                 (all.empty() ? "none" : found + "; name one of them"));
}

// The models' folders in a cache.
std::vector<fs::path> folders_in(const fs::path& cache) {
  std::vector<fs::path> out = sorted_directories(cache);
  std::erase_if(out, [](const fs::path& p) { return !p.filename().string().starts_with(kFolder); });
  return out;
}

Status whole_cache(const std::string& named, const std::vector<fs::path>& folders) {
  std::string found;
  for (const fs::path& folder : folders) {
    const auto snapshot = snapshot_of(folder);
    found += (found.empty() ? "" : ", ") + (snapshot.ok() ? snapshot.value() : folder.string());
  }
  return invalid(
      named + ": wanted one model's directory, found a Hugging Face cache; name a snapshot in it: " + found);
}

Status adapter(const std::string& named) {
  const auto config = read_json(named + "/adapter_config.json", kSmallFile);
  std::string base = "its base model";
  if (config.ok() && config.value().is_object())
    if (const auto name = JsonAt(config.value(), named).string("base_model_name_or_path"); name.ok())
      base = name.value();
  return invalid(
      named + ": wanted a model's directory, found an adapter of " + base +
      " in it (adapter_config.json); merge it into the model (PEFT: merge_and_unload) and save that");
}

// Returns `named` if it is a directory with a config.json, or its snapshot if it is the folder of a cached model.
Result<std::string> directory_behind(const std::string& named) {
  // Rejects adapters, even next to a config.json: transformers would apply the adapter, and Sluice cannot.
  if (is_there(fs::path(named) / "adapter_config.json")) return adapter(named);
  if (is_there(fs::path(named) / "config.json")) return named;
  if (is_folder(fs::path(named) / "snapshots")) return snapshot_of(named);
  for (const fs::path& cache : {fs::path(named), fs::path(named) / "hub"})
    if (const auto folders = folders_in(cache); !folders.empty()) return whole_cache(named, folders);
  return named;  // the caller reports what is missing
}

// Whether `named` has the form "openai/gpt-oss-20b" and is not a path.
bool is_name(const std::string& named) {
  const bool plain = std::all_of(named.begin(), named.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '-' || c == '_' || c == '.' || c == '/';
  });
  return plain && std::isalnum(static_cast<unsigned char>(named.front())) &&
         std::count(named.begin(), named.end(), '/') <= 1 && named.back() != '/';
}

Result<std::string> snapshot_named(const std::string& named) {
  const fs::path cache = cache_directory();
  const fs::path folder = cache / (std::string(kFolder) + replaced(named, "/", "--"));
  if (is_folder(folder / "snapshots")) return snapshot_of(folder);
  return invalid(named +
                 ": wanted a model's directory, found neither a directory nor a model of this name in the "
                 "Hugging Face cache " +
                 cache.string() +
                 (named.find('/') == named.npos
                      ? "; names in the cache are OWNER/NAME, as in openai/gpt-oss-20b"
                      : "; `hf download " + named + "` downloads it"));
}

Result<std::string> shipped(const char* name, const char* what) {
  std::error_code error;
  // The program is <root>/build/<preset>/apps/sluice, or installed as <prefix>/bin/sluice with <prefix>/share/sluice.
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  for (const fs::path& root : {self.parent_path() / "../../..", self.parent_path() / "../share/sluice"}) {
    const fs::path at = root / name;
    if (fs::is_directory(at, error)) return fs::weakly_canonical(at, error).string();
  }
  return invalid(std::string("no ") + what + " was named, and the one that ships with Sluice (" + name +
                 ") is not installed with this program");
}

}  // namespace

Result<std::string> shipped_model() { return shipped(kShipped, "model"); }
Result<std::string> shipped_draft_head() { return shipped(kShippedHead, "draft head"); }

bool is_shipped_model(const std::string& named) {
  if (named.empty()) return true;
  const auto at = shipped_model();
  std::error_code error;
  return at.ok() && fs::equivalent(named, at.value(), error);
}

Result<std::string> model_directory(const std::string& named) {
  if (named.empty()) return shipped_model();
  if (is_folder(named)) return directory_behind(named);
  std::error_code error;
  if (is_there(named) && !fs::is_regular_file(named, error))
    return invalid(named + ": wanted a model's directory, found neither a directory nor a regular file");
  if (is_there(named)) {
    const std::string around = fs::path(named).parent_path().string();
    return invalid(
        named +
        ": wanted a model's directory with config.json, tokenizer.json and *.safetensors, found a file" +
        (named.ends_with(".gguf")
             ? " of another format"
             : "; name the directory that contains it: " + (around.empty() ? "." : around)));
  }
  if (is_name(named)) return snapshot_named(named);
  return invalid(named + ": wanted a model's directory, found no such file or directory");
}

std::string model_name(const std::string& directory) {
  std::error_code error;
  const fs::path path = fs::weakly_canonical(directory, error);
  if (path.parent_path().filename() == "snapshots")
    if (const auto name = name_of_folder(path.parent_path().parent_path().filename().string())) return *name;
  return path.filename().string();
}

}  // namespace sluice::apps
