// Threads that do not handle signals.
#pragma once
#include <csignal>
#include <thread>
#include <utility>

namespace sluice {

// Blocks signals on the calling thread while the object exists, so that threads started meanwhile inherit the
// mask. Fault signals such as SIGSEGV, and the profiler's SIGPROF, stay unblocked.
class SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// A std::thread for library work, with signals blocked. Otherwise a signal handler of the program could run
// on it, concurrently with the program's own threads, whose data the handler may use.
class WorkerThread {
 public:
  WorkerThread() = default;
  // Throws std::system_error like std::thread if the system has no more threads.
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
