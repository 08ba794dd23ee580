// Writes lines to a descriptor that may block, such as a pipe that nobody reads. A separate thread writes, so write() never blocks.
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
  // Makes the line that reports dropped lines.
  using NoteDropped = std::function<std::string(int64_t lines)>;

  // Keeps at most `max_bytes` of unwritten lines and drops the rest. The line from `note`, which any thread may call, takes the place of
  // dropped lines in the output. Throws std::system_error if the thread cannot be created.
  LineWriter(int descriptor, int64_t max_bytes, NoteDropped note);
  // Waits at most one second until all lines are written.
  ~LineWriter();
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;

  void write(std::string line) noexcept;  // thread-safe; drops a line that does not fit
  void drop() noexcept;  // counts a line as dropped; for callers that could not allocate its text
  // Waits until all lines are written or dropped, at most for `timeout`. Returns whether they are.
  bool flush(std::chrono::milliseconds timeout) const;
  int64_t dropped() const;  // since the start

 private:
  struct Queue;
  static void write_all(const std::shared_ptr<Queue>& queue);
  // Shared with the thread, because the thread outlives this object if a write never returns.
  std::shared_ptr<Queue> queue_;
  WorkerThread thread_;
};

}  // namespace sluice
