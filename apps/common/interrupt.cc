#include "apps/common/interrupt.h"

#include <csignal>
#include <cstddef>
#include <iterator>

namespace sluice::apps {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
size_t count = 0;  // how many of kSignals are caught
volatile std::sig_atomic_t signal_seen = 0;
struct sigaction before[std::size(kSignals)];

void on_signal(int signal) { signal_seen = signal; }

}  // namespace

Interruptible::Interruptible(EndOn signals) {
  signal_seen = 0;
  count = signals == EndOn::kCtrlC ? 1 : std::size(kSignals);
  struct sigaction once {};
  once.sa_handler = on_signal;
  once.sa_flags = SA_RESTART | SA_RESETHAND;
  sigemptyset(&once.sa_mask);
  for (size_t i = 0; i < count; ++i) {
    sigaction(kSignals[i], nullptr, &before[i]);
    // A signal that the process ignores stays ignored, for example under nohup and in background jobs of scripts.
    if (before[i].sa_handler != SIG_IGN) sigaction(kSignals[i], &once, nullptr);
  }
}

Interruptible::~Interruptible() {
  for (size_t i = 0; i < count; ++i) sigaction(kSignals[i], &before[i], nullptr);
}

bool asked_to_end() { return signal_seen != 0; }
int ending_signal() { return signal_seen; }

}  // namespace sluice::apps
