// Handles Ctrl-C: the first one requests a stop, the second one kills the program.
#pragma once
#include <cstdint>

namespace sluice::apps {

constexpr int kExitInterrupted = 130;  // the status that shells report for a program killed by Ctrl-C

enum class EndOn : uint8_t {
  kCtrlC,      // SIGINT
  kAnySignal,  // SIGINT, SIGTERM and SIGHUP, for code that must clean up
};

// During its lifetime, the first signal only sets asked_to_end(); the next one has its default effect. Instances must not nest and must
// stay on one thread.
class Interruptible {
 public:
  explicit Interruptible(EndOn signals);
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;
};

bool asked_to_end();  // true once a signal has arrived since the last Interruptible began
int ending_signal();  // the signal that asked for the end; 0: none

}  // namespace sluice::apps
