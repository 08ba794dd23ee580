// Implementations of one piece of work, measured in turn: replay of one, replay of the next, and again, so that a drift of
// the clock meets all of them.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "cuda/power.h"
#include "dispatch/device.h"
#include "report/results.h"

namespace sluice::bench {

enum class Who : uint8_t {
  kSluice,     // what dispatch chooses, or a named way of ours: compared with peers
  kCandidate,  // one kernel of ours, forced: for cost models
  kPeer,
};

struct Contender {
  Who who = Who::kSluice;
  std::string impl, version;
  bool dependent = false;  // programmatic dependent launch of our kernels; a peer was told when it was made
  // Enqueues run i on the device's stream: buffers take turns by i. Recordable. Owns all that it needs.
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
  // Holds the outputs of run 0 against the reference; empty, or what is wrong. A peer is held to looser bounds, since it
  // has contracts of its own. Fails only if the device does.
  std::function<Result<std::string>(Who)> verify = {};
};

struct Outcome {
  Who who;
  Row row;
  Power::Mean power = {};  // only where it was asked for
};

// Contenders that compute something else are left out, one line each in `complaints`. kDevice: a fault, after which
// nothing more can be measured.
Status measure(Device& device, const Contest& contest, int replays, std::vector<Outcome>* outcomes,
               std::vector<std::string>* complaints);

// How long work goes on. A burst ends before the card's power limit lowers its clock; sustained work is timed behind that.
struct Pace {
  bool burst = true, sustained = true;
  double burst_us = 5000, pause_us = 10000;  // of work at most, and between two bursts
  double sustained_us = 300000;              // the second half of it is timed
};

// The same, with as many runs in a recording as fit into a burst (contest.launches is not read), in bursts and sustained:
// rows of both, the note with "burst " or "sustained " in front. What takes longer than a burst in one run has no burst.
Status measure_paced(Device& device, const Contest& contest, const Pace& pace, int replays, Power& power,
                     std::vector<Outcome>* outcomes, std::vector<std::string>* complaints);

// Sets and restores whether our launches are dependent ones.
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

// What the machine gives in this process.
struct Ceilings {
  double launch_us = 0, dependent_launch_us = 0;  // an empty kernel in a recorded chain
  double read_bytes_per_us = 0;
};
Result<Ceilings> measure_ceilings(Device& device);

}  // namespace sluice::bench
