// Kernels of baselines, from the shared libraries peer_*.so in a folder: see peers/peer.h.
#pragma once
#include <filesystem>
#include <memory>
#include <vector>

#include "base/status.h"
#include "peers/peer.h"

namespace sluice::bench {

class Peers {
 public:
  // Loads the libraries in the order of their names. Returns kIo with the name of a library that does not load or that exports no list of
  // baselines. An empty path gives no baselines.
  static Result<Peers> load(const std::filesystem::path& folder);
  const std::vector<const sluice_peer*>& all() const { return all_; }
  const std::vector<const sluice_layer_peer*>& layers() const { return layers_; }
  const std::vector<const sluice_attention_peer*>& attention() const { return attention_; }
  const std::vector<const sluice_latent_peer*>& latent() const { return latent_; }

 private:
  // Libraries stay loaded until the process ends.
  std::vector<const sluice_peer*> all_;
  std::vector<const sluice_layer_peer*> layers_;
  std::vector<const sluice_attention_peer*> attention_;
  std::vector<const sluice_latent_peer*> latent_;
};

}  // namespace sluice::bench
