// What is measured: for each operation and shape a contest at every token count.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "cuda/contest.h"
#include "cuda/gate.h"
#include "cuda/peers.h"

namespace sluice::bench {

class Bench {
 public:
  struct Options {
    std::vector<std::string> models;  // only these; empty: all
    std::vector<int64_t> tokens = {1,   2,   4,   8,   16,   32,   64,   96,   128,
                                   192, 256, 384, 512, 1024, 2048, 4096, 8192, 16384};
    int replays = 21;
  };
  // `report` gets the outcomes of a contest and the complaints, as soon as they are there.
  using Report = std::function<Status(const std::vector<Outcome>&, const std::vector<std::string>&)>;
  Bench(Device& device, const Peers& peers, Options options, Report report)
      : device_(device), peers_(peers), options_(std::move(options)), report_(std::move(report)) {}

  Status router();   // router_gemm, router_gemm_pdl
  Status fused();    // router_route_fused
  Status routing();  // route_group
  Status chain();

 private:
  bool wants(const std::string& model) const;
  int64_t tokens_max() const;
  // Measures and reports; `complaints` are those of making the contest.
  Status hold(const Contest& contest, std::vector<std::string> complaints) const;

  Device& device_;
  const Peers& peers_;
  Options options_;
  Report report_;
};

// Runs of a recording: so many that weights that take turns are cold, and that a recording takes long enough to be timed,
// but no more than that. weight_bytes may be 0: nothing is to be cold.
int64_t launches_for(int64_t weight_bytes, double bytes, double flops);

}  // namespace sluice::bench
