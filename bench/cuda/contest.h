// Implementations of the same work, measured alternately: a replay of one, a replay of the next, and so on, so that clock drift affects
// all of them equally.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "cuda/power.h"
#include "dispatch/device.h"
#include "report/results.h"

namespace sluice::bench {

enum class Who : uint8_t {
  kSluice,     // the kernels that dispatch chooses, or another combination: compared with baselines
  kCandidate,  // one of Sluice's kernels, forced: data for the cost models
  kPeer,
};

// A baseline's error may be this many times the operation's bound: baselines accumulate in f32 too, but some round partial sums.
constexpr double kPeerBounds = 4;

struct Contender {
  Who who = Who::kSluice;
  std::string impl, version;
  // Whether Sluice's kernels use programmatic dependent launch. Baselines are told when they are created.
  bool dependent = false;
  // Enqueues run i on the device's stream; buffers rotate with i. Can be captured. Owns everything that it needs.
  std::function<Status(int64_t i)> enqueue = {};
};

struct Contest {
  std::string suite, op, model, note;
  int64_t tokens = 0;
  double bytes = 0, flops = 0;
  int64_t launches = 200;  // runs per captured graph
  std::vector<Contender> contenders = {};
  // Overwrites the outputs of run 0.
  std::function<Status()> poison = {};
  // Checks the outputs of run 0 against the reference. Returns an empty string, or a description of the error. Baselines have their own
  // contracts, so their bounds are looser. The Status is an error only if the device fails.
  std::function<Result<std::string>(Who)> verify = {};
};

struct Outcome {
  Who who;
  Row row;
  Power::Mean power = {};  // only if requested
};

// Omits contenders with wrong results, with one line each in `complaints`. Returns kDevice after a fault, when nothing more can be measured.
Status measure(Device& device, const Contest& contest, int replays, std::vector<Outcome>* outcomes,
               std::vector<std::string>* complaints);

// The length of a measurement. A burst ends before the GPU's power limit lowers its clock. Sustained work is timed after that point. It
// starts after a rest, because the limit averages over some time (docs/lab/cuda-step-launches.md).
struct Pace {
  bool burst = true, sustained = true;
  double burst_us = 5000, pause_us = 10000;  // maximum work per burst; pause between bursts
  double sustained_us = 300000;              // the second half is timed
  double rest_us = 700000;                   // before each sustained measurement
};

// measure() with as many runs per graph as fit into a burst (contest.launches is ignored), in bursts and sustained. Returns
// rows of both, with "burst " or "sustained " before the note. If one run takes longer than a burst, there is no burst row.
Status measure_paced(Device& device, const Contest& contest, const Pace& pace, int replays, Power& power,
                     std::vector<Outcome>* outcomes, std::vector<std::string>* complaints);

// Sets whether Sluice uses dependent launches, and restores the setting.
class Dependent {
 public:
  Dependent(Stream stream, bool on);
  ~Dependent();
  Dependent(const Dependent&) = delete;
  Dependent& operator=(const Dependent&) = delete;

 private:
  bool* flag_;
  bool before_;
};

// The GPU's ceilings, measured in this process.
struct Ceilings {
  double launch_us = 0, dependent_launch_us = 0;  // an empty kernel in a captured chain
  double read_bytes_per_us = 0;
};
Result<Ceilings> measure_ceilings(Device& device);

}  // namespace sluice::bench
