// Signal handlers that only record signals. The thread that reads the terminal handles the signals later.
#pragma once
#include <optional>

namespace sluice::apps {

// A signal handler may run between any two instructions, so it must not touch the line editor's state. These handlers only record the signal
// and wake the reader.
class SignalNotes {
 public:
  SignalNotes();
  ~SignalNotes();
  SignalNotes(const SignalNotes&) = delete;
  SignalNotes& operator=(const SignalNotes&) = delete;
  bool works() const { return wake_[0] >= 0; }  // false: the process has no descriptors left
  int descriptor() const { return wake_[0]; }   // readable once a signal is recorded
  std::optional<int> take();                    // the next recorded signal
  // Gives the signal the effect that it would have without this class. Returns if the process continues after that.
  void deliver(int signal);

  // During its lifetime, records signals for window size changes, stop, continue and termination. Only one instance may exist. Stop and
  // termination signals that the process ignores, for example under nohup, stay ignored.
  class Taking {
   public:
    explicit Taking(SignalNotes* notes);
    ~Taking();
    Taking(const Taking&) = delete;
    Taking& operator=(const Taking&) = delete;
  };

 private:
  int wake_[2] = {-1, -1};
};

}  // namespace sluice::apps
