// Ctrl-C while something is under way: the first asks it to end, the second ends the program.
#pragma once
#include <cstdint>

namespace sluice::apps {

constexpr int kExitInterrupted = 130;  // as shells report a program that Ctrl-C ended

enum class EndOn : uint8_t {
  kCtrlC,      // SIGINT
  kAnySignal,  // and SIGTERM, SIGHUP: there is something to clean up
};

// For as long as it lives, the first such signal only sets asked_to_end(); the next one has its usual effect. Not nested, and of
// one thread.
class Interruptible {
 public:
  explicit Interruptible(EndOn signals);
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;
};

bool asked_to_end();  // since the last Interruptible began
int ending_signal();  // that asked; 0: none

}  // namespace sluice::apps
