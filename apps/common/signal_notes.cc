#include "apps/common/signal_notes.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <iterator>

namespace sluice::apps {
namespace {

constexpr int kNoted[] = {SIGWINCH, SIGCONT, SIGTSTP, SIGINT, SIGQUIT, SIGTERM, SIGHUP};
struct sigaction unnoted[std::size(kNoted)];  // the previous actions
std::atomic<uint32_t> notes{0};               // one bit per signal of kNoted
std::atomic<int> wake_end{-1};
static_assert(std::atomic<uint32_t>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

void note(int signal) {
  const int error = errno;
  for (size_t i = 0; i < std::size(kNoted); ++i)
    if (kNoted[i] == signal) notes.fetch_or(1u << i);
  // If the pipe is full, the write fails, but then the reader wakes anyway.
  [[maybe_unused]] const ssize_t written = write(wake_end.load(), "", 1);
  errno = error;
}

bool ends_or_stops(int signal) { return signal != SIGWINCH && signal != SIGCONT; }

void take_notes_of(size_t i) {
  struct sigaction noted {};
  noted.sa_handler = note;
  noted.sa_flags = SA_RESTART;
  sigfillset(&noted.sa_mask);
  sigaction(kNoted[i], nullptr, &unnoted[i]);
  if (unnoted[i].sa_handler == SIG_IGN && ends_or_stops(kNoted[i])) return;
  sigaction(kNoted[i], &noted, nullptr);
}

}  // namespace

SignalNotes::SignalNotes() {
  if (pipe2(wake_, O_CLOEXEC | O_NONBLOCK) != 0) wake_[0] = wake_[1] = -1;
}

SignalNotes::~SignalNotes() {
  for (const int end : wake_)
    if (end >= 0) close(end);
}

std::optional<int> SignalNotes::take() {
  char wakes[64];
  while (read(wake_[0], wakes, sizeof wakes) > 0) {
  }
  for (size_t i = 0; i < std::size(kNoted); ++i)
    if (notes.fetch_and(~(1u << i)) & (1u << i)) return kNoted[i];
  return {};
}

void SignalNotes::deliver(int signal) {
  for (size_t i = 0; i < std::size(kNoted); ++i) {
    if (kNoted[i] != signal) continue;
    sigaction(signal, &unnoted[i], nullptr);
    raise(signal);
    take_notes_of(i);
  }
}

SignalNotes::Taking::Taking(SignalNotes* to) {
  notes = 0;
  wake_end = to->wake_[1];
  for (size_t i = 0; i < std::size(kNoted); ++i) take_notes_of(i);
}

SignalNotes::Taking::~Taking() {
  for (size_t i = 0; i < std::size(kNoted); ++i) sigaction(kNoted[i], &unnoted[i], nullptr);
}

}  // namespace sluice::apps
