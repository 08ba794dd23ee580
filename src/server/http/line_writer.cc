#include "server/http/line_writer.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <mutex>
#include <string_view>
#include <utility>

#include "server/memory.h"

namespace sluice {
namespace {

constexpr std::chrono::milliseconds kLastLines{1000};

// Returns the number of bytes written, which is less than bytes.size() only after an error.
size_t write_bytes(int descriptor, std::string_view bytes) {
  size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t n = ::write(descriptor, bytes.data() + written, bytes.size() - written);
    if (n >= 0) {
      written += static_cast<size_t>(n);
      // Another process that shares the descriptor made it non-blocking, so wait until it is writable.
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      pollfd writable{.fd = descriptor, .events = POLLOUT, .revents = 0};
      (void)poll(&writable, 1, -1);
    } else if (errno != EINTR) {
      break;
    }
  }
  return written;
}

}  // namespace

struct LineWriter::Queue {
  struct Line {
    std::string text;
    int64_t missing_before = 0;
  };
  Queue(int fd, int64_t max, NoteDropped n) : descriptor(fd), max_bytes(max), note(std::move(n)) {}
  const int descriptor;
  const int64_t max_bytes;
  const NoteDropped note;
  std::mutex mutex;
  std::condition_variable wake, idle;
  std::deque<Line> lines;
  int64_t bytes = 0;  // total size of `lines`
  // missing: lines dropped since the last queued line; dropped: lines dropped since the start.
  int64_t missing = 0, dropped = 0;
  bool writing = false, end = false;
};

LineWriter::LineWriter(int descriptor, int64_t max_bytes, NoteDropped note)
    : queue_(std::make_shared<Queue>(descriptor, max_bytes, std::move(note))) {
  thread_ = WorkerThread([queue = queue_] { write_all(queue); });
}

LineWriter::~LineWriter() {
  const bool written = flush(kLastLines);
  {
    const std::lock_guard lock(queue_->mutex);
    queue_->end = true;
  }
  queue_->wake.notify_one();
  if (written) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void LineWriter::write(std::string line) noexcept {
  Queue& q = *queue_;
  const std::lock_guard lock(q.mutex);
  const int64_t bytes = std::ssize(line);
  const bool taken = q.bytes + bytes <= q.max_bytes && has_memory_for([&] {
                       q.lines.push_back({.text = std::move(line), .missing_before = q.missing});
                     });
  q.bytes += taken ? bytes : 0;
  q.missing = taken ? 0 : q.missing + 1;
  q.dropped += taken ? 0 : 1;
  q.wake.notify_one();
}

void LineWriter::drop() noexcept {
  const std::lock_guard lock(queue_->mutex);
  ++queue_->missing, ++queue_->dropped;
  queue_->wake.notify_one();
}

bool LineWriter::flush(std::chrono::milliseconds timeout) const {
  std::unique_lock lock(queue_->mutex);
  return queue_->idle.wait_for(lock, timeout, [&] { return queue_->lines.empty() && !queue_->writing; });
}

int64_t LineWriter::dropped() const {
  const std::lock_guard lock(queue_->mutex);
  return queue_->dropped;
}

void LineWriter::write_all(const std::shared_ptr<Queue>& queue) {
  // With SIGPIPE blocked, a closed pipe is a write error and does not kill the process.
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
  Queue& q = *queue;
  std::unique_lock lock(q.mutex);
  int64_t untold = 0;  // dropped lines that no note in the output has reported yet
  bool cut = false;    // the last line was written only in part
  while (true) {
    q.wake.wait(lock, [&] { return q.end || !q.lines.empty() || q.missing > 0; });
    if (q.lines.empty() && q.missing == 0) return;
    std::string line;
    if (q.lines.empty()) {
      untold += std::exchange(q.missing, 0);
    } else {
      untold += q.lines.front().missing_before;
      line = std::move(q.lines.front().text);
      q.lines.pop_front();
      q.bytes -= std::ssize(line);
    }
    q.writing = true;
    lock.unlock();
    const auto tell = [&] {
      const std::string note = (cut ? "\n" : "") + q.note(untold);
      const size_t written = write_bytes(q.descriptor, note);
      cut = written < note.size() && (cut || written > 0);
      if (written == note.size()) untold = 0;
    };
    if (untold > 0) (void)has_memory_for(tell);
    bool failed = false;
    if (untold == 0) {
      const size_t written = write_bytes(q.descriptor, line);
      failed = written < line.size();
      cut = failed && written > 0;
    } else {
      failed = !line.empty();  // writing the note failed, so the line is dropped, too
    }
    untold += failed ? 1 : 0;
    lock.lock();
    q.dropped += failed ? 1 : 0;
    q.writing = false;
    if (q.lines.empty()) q.idle.notify_all();
  }
}

}  // namespace sluice
