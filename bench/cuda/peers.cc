#include "cuda/peers.h"

#include <dlfcn.h>

#include <algorithm>

namespace sluice::bench {

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
    int count = 0;
    const auto list = reinterpret_cast<decltype(&sluice_peers)>(dlsym(library, "sluice_peers"));
    if (list) {
      const sluice_peer* const* peers = list(&count);
      out.all_.insert(out.all_.end(), peers, peers + count);
    }
    const auto layers = reinterpret_cast<decltype(&sluice_layer_peers)>(dlsym(library, "sluice_layer_peers"));
    if (layers) {
      const sluice_layer_peer* const* peers = layers(&count);
      out.layers_.insert(out.layers_.end(), peers, peers + count);
    }
    if (!list && !layers)
      return Status{Code::kIo, "peers: " + path.string() +
                                   ": wanted a function sluice_peers or sluice_layer_peers, found none"};
  }
  return out;
}

}  // namespace sluice::bench
