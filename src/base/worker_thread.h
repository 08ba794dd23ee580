// Threads that take no signals.
#pragma once
#include <csignal>
#include <thread>
#include <utility>

namespace sluice {

// Blocks the calling thread's signals for as long as it lives; threads that start meanwhile inherit that. Signals that say that a thread
// itself went wrong stay, and a profiler's.
class SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// A std::thread for work beside the program's own threads. The system gives a signal to any thread that does not block it: a handler that
// uses what one of the program's threads is using must not run on a worker meanwhile.
class WorkerThread {
 public:
  WorkerThread() = default;
  // std::system_error as std::thread throws it: the system has no more threads.
  template <class Work>
  explicit WorkerThread(Work work) {
    const SignalsBlocked while_it_starts;
    thread_ = std::thread(std::move(work));
  }
  void join() { thread_.join(); }
  void detach() { thread_.detach(); }
  bool joinable() const { return thread_.joinable(); }

 private:
  std::thread thread_;
};

}  // namespace sluice
