// When requests arrive.
#pragma once
#include <cstdint>
#include <vector>

namespace sluice {

struct ArrivalOptions {
  double request_rate = 0;  // requests a second; 0: all at once
  double burstiness = 1;    // shape of the gamma distribution of the gaps; 1: a Poisson process
  uint64_t seed = 0;
};
// Seconds after the run's begin, in order. As vLLM does, the gaps are scaled such that the last request arrives at count / rate: runs
// of different seeds then offer the same load.
std::vector<double> arrival_times(int64_t count, const ArrivalOptions& options);

}  // namespace sluice
