// Uploads host data to device memory at full bandwidth: threads fill a ring of page-locked memory, and the
// caller's thread enqueues the copies.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "dispatch/device.h"
#include "weights/parallel.h"

namespace sluice {

class UploadRing {
 public:
  struct Options {
    int threads = 0;                         // reading threads, including the caller's; 0: one per processor
    int64_t slot_bytes = 0;                  // size of the largest piece
    int64_t ring_bytes = int64_t{32} << 20;  // raised if two pieces do not fit
  };
  // kOutOfMemory: the ring cannot be allocated.
  static Result<std::unique_ptr<UploadRing>> make(Device& device, const Options& options);
  ~UploadRing();
  UploadRing(const UploadRing&) = delete;
  UploadRing& operator=(const UploadRing&) = delete;

  // Callbacks that handle a piece, given its number.
  struct Work {
    std::function<Status(int64_t piece, std::byte* slot)> read;  // on any thread: fills the slot
    std::function<void(int64_t piece)> after = {};               // called after read(), on the same thread
    // on the caller's thread, in order: enqueues copies
    std::function<Status(int64_t piece, std::byte* slot)> send;
  };
  // Reads and sends pieces 0 .. count - 1, and returns when the device's stream has finished. If reading
  // fails, returns the error of the first piece that failed; that piece and later pieces are not sent.
  Status run(int64_t count, const Work& work);

 private:
  class Readers;
  UploadRing(Device& device, const Options& options) : device_(device), workers_(options.threads) {}
  std::byte* slot_of(int64_t piece) const { return ring_ + piece % slots_ * slot_bytes_; }
  Status send_all(int64_t count, const Work& work, Readers* readers);

  Device& device_;
  Workers workers_;
  std::byte* ring_ = nullptr;
  int64_t slot_bytes_ = 0, slots_ = 0;
};

}  // namespace sluice
