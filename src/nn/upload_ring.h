// From the host into a device's memory at full speed: threads fill a ring of page-locked memory, and the caller's thread sends it on.
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
    int threads = 0;                         // the caller's, and those that read; 0: one for each processor
    int64_t slot_bytes = 0;                  // of the largest piece
    int64_t ring_bytes = int64_t{32} << 20;  // more, if two pieces need it
  };
  // kOutOfMemory.
  static Result<std::unique_ptr<UploadRing>> make(Device& device, const Options& options);
  ~UploadRing();
  UploadRing(const UploadRing&) = delete;
  UploadRing& operator=(const UploadRing&) = delete;

  // What becomes of a piece, by its number.
  struct Work {
    std::function<Status(int64_t piece, std::byte* slot)> read;  // on some thread: fills its slot
    std::function<void(int64_t piece)> after = {};               // on the same thread: it has been read
    std::function<Status(int64_t piece, std::byte* slot)>
        send;  // on the caller's thread, in order: enqueues copies
  };
  // Reads and sends pieces 0 .. count - 1, and returns when the device's stream has done it all. Of several pieces that cannot be
  // read, the first one's error; nothing from there on is sent.
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
