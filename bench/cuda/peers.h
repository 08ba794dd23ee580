// Kernels of others, from the shared libraries peer_*.so of a folder: see peers/peer.h.
#pragma once
#include <filesystem>
#include <memory>
#include <vector>

#include "base/status.h"
#include "peers/peer.h"

namespace sluice::bench {

class Peers {
 public:
  // Libraries in the order of their names. kIo names a library that does not load, or that exports no peers; an empty path
  // gives no peers.
  static Result<Peers> load(const std::filesystem::path& folder);
  const std::vector<const sluice_peer*>& all() const { return all_; }

 private:
  std::vector<const sluice_peer*> all_;  // libraries stay loaded until the process ends
};

}  // namespace sluice::bench
