// What steps send to the device, of a size that is not known beforehand.
#pragma once
#include <cstddef>
#include <string>

#include "dispatch/device.h"

namespace sluice {

// Page-locked memory, and the block on the device that gets a copy of it.
class UploadBlock {
 public:
  // `what` it is for begins its errors.
  UploadBlock(Device& device, std::string what) : device_(device), what_(std::move(what)) {}
  ~UploadBlock() { release(); }
  UploadBlock(const UploadBlock&) = delete;
  UploadBlock& operator=(const UploadBlock&) = delete;

  // In place of what there was, with zeros on the host. Nothing that is enqueued may want the old one any more. kOutOfMemory says how
  // much; nothing can be sent then. `device_bytes` is at least `host_bytes`.
  Status replace(size_t host_bytes, size_t device_bytes);
  // Enqueues the copy of the first `bytes`.
  Status send(size_t bytes) const { return device_.copy(block_, host_, bytes, device_.stream()); }

  std::byte* host() const { return host_; }
  std::byte* block() const { return block_; }

 private:
  void release();

  Device& device_;
  std::string what_;
  std::byte *host_ = nullptr, *block_ = nullptr;
};

}  // namespace sluice
