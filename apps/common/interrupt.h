// Handles Ctrl-C: the first Ctrl-C requests a stop, the second one kills the program.
#pragma once
#include <cstdint>

namespace sluice::apps {

constexpr int kExitInterrupted = 130;  // the status that shells report for a program killed by Ctrl-C

enum class EndOn : uint8_t {
  kCtrlC,      // SIGINT
  kAnySignal,  // SIGINT, SIGTERM and SIGHUP, for code that must clean up
};

// During the lifetime of an instance, the first signal only makes asked_to_end() true; the next signal has its default effect. Only one instance
// may exist at a time, and all instances must be created on the same thread.
class Interruptible {
 public:
  explicit Interruptible(EndOn signals);
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;
};

bool asked_to_end();  // whether a signal has arrived since the last Interruptible was created
int ending_signal();  // the signal that arrived; 0: no signal

}  // namespace sluice::apps
