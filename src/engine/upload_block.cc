#include "engine/upload_block.h"

#include <cstring>

namespace sluice {

void UploadBlock::release() {
  if (host_) device_.release_host(host_);
  if (block_) device_.release(block_);
  host_ = block_ = nullptr;
}

Status UploadBlock::replace(size_t host_bytes, size_t device_bytes) {
  release();
  const auto failed = [&](const Status& status) {
    return Status{status.code, what_ + ": " + status.message};
  };
  const Result<void*> host = device_.allocate_host(host_bytes);
  if (!host.ok()) return failed(host.status());
  host_ = static_cast<std::byte*>(host.value());
  const Result<void*> block = device_.allocate(device_bytes);
  if (!block.ok()) return failed(block.status());
  block_ = static_cast<std::byte*>(block.value());
  std::memset(host_, 0, host_bytes);  // initializes the gaps between tensors, which copies include
  return {};
}

}  // namespace sluice
