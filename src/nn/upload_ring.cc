#include "nn/upload_ring.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <vector>

namespace sluice {
namespace {

constexpr int64_t kSlotAlignment = 256;
// The ring is freed in parts: a part can be refilled when all its copies have finished.
constexpr int64_t kParts = 4;

}  // namespace

// The reading side: threads claim pieces in order, and wait while the ring is full.
class UploadRing::Readers {
 public:
  Readers(const UploadRing& ring, int64_t count, const Work& work)
      : ring_(ring), work_(work), count_(count), read_(static_cast<size_t>(count)) {}

  // Reads the next piece that no thread has claimed. Returns false if no piece is left.
  bool read_next() {
    int64_t i = 0;
    {
      std::unique_lock lock(mutex_);
      free_.wait(lock, [&] { return stop_ || next_ == count_ || next_ < freed_ + ring_.slots_; });
      if (stop_ || next_ == count_) return false;
      i = next_++;
    }
    Status status = work_.read(i, ring_.slot_of(i));
    bool wanted = false;
    {
      const std::lock_guard lock(mutex_);
      read_[static_cast<size_t>(i)] = {std::move(status), true};
      wanted = i == wanted_;
    }
    if (wanted) arrived_.notify_one();
    if (work_.after) work_.after(i);
    return true;
  }
  // Waits until a piece has been read, and returns the status of reading it.
  Status wait_for(int64_t piece) {
    const Read& read = read_[static_cast<size_t>(piece)];
    while (ring_.workers_.helpers() == 0 && !read.done)
      if (!read_next()) break;
    std::unique_lock lock(mutex_);
    wanted_ = piece;
    arrived_.wait(lock, [&] { return read.done; });
    return read.status;
  }
  // Allows threads to refill the slots of the first `pieces` pieces.
  void give_back(int64_t pieces) {
    {
      const std::lock_guard lock(mutex_);
      freed_ = pieces;
    }
    free_.notify_all();
  }
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    free_.notify_all();
  }

 private:
  struct Read {
    Status status;
    bool done = false;
  };
  const UploadRing& ring_;
  const Work& work_;
  const int64_t count_;
  std::mutex mutex_;
  std::condition_variable free_, arrived_;
  int64_t next_ = 0, freed_ = 0, wanted_ = 0;
  bool stop_ = false;
  std::vector<Read> read_;
};

Result<std::unique_ptr<UploadRing>> UploadRing::make(Device& device, const Options& options) {
  std::unique_ptr<UploadRing> out(new UploadRing(device, options));
  out->slot_bytes_ = round_up(std::max<int64_t>(options.slot_bytes, 1), kSlotAlignment);
  const int64_t bytes = std::max(options.ring_bytes, 2 * out->slot_bytes_);
  const auto ring = device.allocate_host(static_cast<size_t>(bytes));
  if (!ring.ok()) return ring.status();
  out->ring_ = static_cast<std::byte*>(ring.value());
  out->slots_ = bytes / out->slot_bytes_;
  return out;
}

UploadRing::~UploadRing() {
  if (ring_) device_.release_host(ring_);
}

Status UploadRing::run(int64_t count, const Work& work) {
  Readers readers(*this, count, work);
  Status status;
  workers_.run(
      workers_.helpers(),
      [&](int64_t) {
        while (readers.read_next()) {
        }
      },
      [&] {
        status = send_all(count, work, &readers);
        readers.stop();
      });
  // Waits even after an error, because copies may still be reading the ring.
  const Status waited = device_.wait(device_.stream());
  return status.ok() ? waited : status;
}

Status UploadRing::send_all(int64_t count, const Work& work, Readers* readers) {
  const int64_t part = std::max<int64_t>(slots_ / kParts, 1);
  for (int64_t i = 0; i < count; ++i) {
    SLUICE_TRY(readers->wait_for(i));
    SLUICE_TRY(work.send(i, slot_of(i)));
    if ((i + 1) % part != 0) continue;
    SLUICE_TRY(device_.wait(device_.stream()));
    readers->give_back(i + 1);
  }
  return {};
}

}  // namespace sluice
