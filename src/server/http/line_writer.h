// Lines for a descriptor that may block, as a pipe that nobody reads: a thread of its own writes them, so who has a line never waits.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/worker_thread.h"

namespace sluice {

class LineWriter {
 public:
  using NoteDropped = std::function<std::string(int64_t lines)>;  // the line that tells of dropped ones

  // Keeps at most `max_bytes` of lines that are not written yet. `note` stands where lines are missing, once it can be written; it is
  // called on any thread. Throws std::system_error where the system has no thread.
  LineWriter(int descriptor, int64_t max_bytes, NoteDropped note);
  // Waits a second at most for what is left.
  ~LineWriter();
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;

  void write(std::string line) noexcept;  // from any thread; drops what does not fit
  void drop() noexcept;                   // counts a line that could not be made
  bool flush(
      std::chrono::milliseconds most) const;  // whether all that was taken has been written, or was dropped
  int64_t dropped() const;                    // so far

 private:
  struct Queue;
  static void write_all(const std::shared_ptr<Queue>& queue);
  std::shared_ptr<Queue>
      queue_;  // the thread's too: it may have to be left behind in a write that does not return
  WorkerThread thread_;
};

}  // namespace sluice
