// Signals as notes: handlers write down that there was one, and whoever reads the terminal acts on it when it suits.
#pragma once
#include <optional>

namespace sluice::apps {

// Handlers run between any two instructions, on any thread that does not block their signal. So none of them may touch an editor's state:
// these only take a note and wake the reader.
class SignalNotes {
 public:
  SignalNotes();
  ~SignalNotes();
  SignalNotes(const SignalNotes&) = delete;
  SignalNotes& operator=(const SignalNotes&) = delete;
  bool works() const { return wake_[0] >= 0; }  // no: the process has no descriptors left
  int descriptor() const { return wake_[0]; }   // can be read once there is a note
  std::optional<int> take();                    // the next signal that was noted
  // What the signal would have done without the note; returns if the process goes on.
  void deliver(int signal);

  // Notes are taken as long as this lives, one at a time: of the window's size, of stopping and going on, and of what ends a program.
  // Signals that the process ignores (nohup) stay ignored.
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
