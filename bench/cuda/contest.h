// Implementations of the same work, measured alternately: a replay of one, a replay of the next, and so on, so that clock drift
// affects all of them.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "cuda/power.h"
#include "dispatch/device.h"
#include "report/results.h"

namespace sluice::bench {

enum class Who : uint8_t {
  kSluice,     // what dispatch chooses, or another way through Sluice: compared with peers
  kCandidate,  // one of Sluice's kernels, forced: for cost models
  kPeer,
};

// Times an operation's bound that a peer may be away: they accumulate in f32 as well, but some round partial sums.
constexpr double kPeerBounds = 4;

struct Contender {
  Who who = Who::kSluice;
  std::string impl, version;
  bool dependent = false;  // programmatic dependent launch of Sluice's kernels; peers get theirs at creation
  // Enqueues run i on the device's stream: buffers rotate by i. Recordable. Owns everything it needs.
  std::function<Status(int64_t i)> enqueue = {};
};

struct Contest {
  std::string suite, op, model, note;
  int64_t tokens = 0;
  double bytes = 0, flops = 0;
  int64_t launches = 200;  // runs in a recording
  std::vector<Contender> contenders = {};
  // Overwrites the outputs of run 0.
  std::function<Status()> poison = {};
  // Checks the outputs of run 0 against the reference. Returns an empty string, or what is wrong. Peers have contracts of their
  // own, so their bounds are looser. The Status is an error only if the device fails.
  std::function<Result<std::string>(Who)> verify = {};
};

struct Outcome {
  Who who;
  Row row;
  Power::Mean power = {};  // only if requested
};

// Contenders with wrong results are left out, with one line each in `complaints`. kDevice: a fault, after which nothing more
// can be measured.
Status measure(Device& device, const Contest& contest, int replays, std::vector<Outcome>* outcomes,
               std::vector<std::string>* complaints);

// The length of a measurement. A burst ends before the card's power limit lowers its clock. Sustained work is timed after that; it begins
// rested, since the limit looks back over a second or so (docs/lab/cuda-step-launches.md).
struct Pace {
  bool burst = true, sustained = true;
  double burst_us = 5000, pause_us = 10000;  // most work in a burst, and the pause between bursts
  double sustained_us = 300000;              // the second half of it is timed
  double rest_us = 700000;                   // before each of them
};

// measure() with as many runs per recording as fit into a burst (contest.launches is not read), in bursts and sustained. Rows
// of both, with "burst " or "sustained " before the note. If one run takes longer than a burst, there is no burst row.
Status measure_paced(Device& device, const Contest& contest, const Pace& pace, int replays, Power& power,
                     std::vector<Outcome>* outcomes, std::vector<std::string>* complaints);

// Sets whether Sluice's launches are dependent ones, and restores it.
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

// The machine's ceilings, measured in this process.
struct Ceilings {
  double launch_us = 0, dependent_launch_us = 0;  // an empty kernel in a recorded chain
  double read_bytes_per_us = 0;
};
Result<Ceilings> measure_ceilings(Device& device);

}  // namespace sluice::bench
