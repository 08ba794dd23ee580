// The arrival times of requests.
#pragma once
#include <cstdint>
#include <vector>

namespace sluice {

struct ArrivalOptions {
  double request_rate = 0;  // requests per second; 0: all at once
  double burstiness = 1;    // shape of the gamma distribution of gaps; 1: a Poisson process
  uint64_t seed = 0;
};
// The arrival times, sorted, in seconds since the start of the run. As in vLLM, the gaps are scaled so that the last request arrives at
// count / rate. So runs with different seeds offer the same load.
std::vector<double> arrival_times(int64_t count, const ArrivalOptions& options);

}  // namespace sluice
