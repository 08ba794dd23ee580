#include "cuda/peers.h"

#include <dlfcn.h>

#include <algorithm>

namespace sluice::bench {
namespace {

// Appends the baselines that the function `name` lists. Returns false if the library has no such function.
template <class Function, class Peer>
bool take(void* library, const char* name, std::vector<const Peer*>* out) {
  const auto list = reinterpret_cast<Function>(dlsym(library, name));
  if (!list) return false;
  int count = 0;
  const Peer* const* peers = list(&count);
  out->insert(out->end(), peers, peers + count);
  return true;
}

}  // namespace

Result<Peers> Peers::load(const std::filesystem::path& folder) {
  Peers out;
  if (folder.empty()) return out;
  std::error_code error;
  std::vector<std::filesystem::path> libraries;
  for (const auto& file : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = file.path().filename().string();
    if (name.starts_with("peer_") && name.ends_with(".so"))
      libraries.push_back(std::filesystem::absolute(file.path()));
  }
  if (error || libraries.empty())
    return Status{Code::kIo, "peers: wanted peer_*.so in " + folder.string() + ", found " +
                                 (error ? error.message() : std::string("none"))};
  std::sort(libraries.begin(), libraries.end());
  for (const auto& path : libraries) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) return Status{Code::kIo, std::string("peers: ") + dlerror()};
    bool any = take<decltype(&sluice_peers)>(library, "sluice_peers", &out.all_);
    any |= take<decltype(&sluice_layer_peers)>(library, "sluice_layer_peers", &out.layers_);
    any |= take<decltype(&sluice_attention_peers)>(library, "sluice_attention_peers", &out.attention_);
    any |= take<decltype(&sluice_latent_peers)>(library, "sluice_latent_peers", &out.latent_);
    if (!any)
      return Status{Code::kIo, "peers: " + path.string() +
                                   ": wanted a function sluice_peers, sluice_layer_peers, "
                                   "sluice_attention_peers or sluice_latent_peers, found none"};
  }
  return out;
}

}  // namespace sluice::bench
