// Memory for inputs of a step whose size is not known in advance.
#pragma once
#include <cstddef>
#include <string>

#include "dispatch/device.h"

namespace sluice {

// Page-locked host memory, and the device block that receives a copy of it.
class UploadBlock {
 public:
  // `what` names the purpose of the memory; error messages begin with it.
  UploadBlock(Device& device, std::string what) : device_(device), what_(std::move(what)) {}
  ~UploadBlock() { release(); }
  UploadBlock(const UploadBlock&) = delete;
  UploadBlock& operator=(const UploadBlock&) = delete;

  // Replaces the memory; the host's part is zeroed. No enqueued work may still use the old memory.
  // `device_bytes` must be at least `host_bytes`. kOutOfMemory gives the bytes needed; afterwards nothing can
  // be sent.
  Status replace(size_t host_bytes, size_t device_bytes);
  // Enqueues the copy of the first `bytes` bytes to the device.
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
