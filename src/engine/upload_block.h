// Memory for step inputs whose size is not known in advance.
#pragma once
#include <cstddef>
#include <string>

#include "dispatch/device.h"

namespace sluice {

// Page-locked host memory, and the device block that receives a copy of it.
class UploadBlock {
 public:
  // `what` names its purpose and begins its error messages.
  UploadBlock(Device& device, std::string what) : device_(device), what_(std::move(what)) {}
  ~UploadBlock() { release(); }
  UploadBlock(const UploadBlock&) = delete;
  UploadBlock& operator=(const UploadBlock&) = delete;

  // Replaces the memory; the host's part begins as zeros. No enqueued work may still use the old memory.
  // kOutOfMemory gives the bytes wanted; nothing can be sent then. `device_bytes` must be at least `host_bytes`.
  Status replace(size_t host_bytes, size_t device_bytes);
  // Enqueues the copy of the first `bytes` bytes.
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
