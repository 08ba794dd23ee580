// A simulated GPU: the CPU's kernels behind memory that the host cannot access, with weights in fragment
// layout. It executes nothing before a wait. So code that works on it does not access device memory from
// the host, and has every wait that it needs.
#pragma once
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <functional>
#include <map>
#include <vector>

#include "backends/cpu/device.h"
#include "nn/moe/layer.h"

namespace sluice::test {

// Memory that is accessible only while a Door exists.
class FarMemory {
 public:
  ~FarMemory() { EXPECT_TRUE(blocks_.empty()) << "memory was not released"; }
  void* take(size_t bytes) {
    const size_t rounded = (bytes + 4095) / 4096 * 4096 + 4096;
    void* memory = mmap(nullptr, rounded, open_ ? PROT_READ | PROT_WRITE : PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    blocks_[memory] = rounded;
    return memory;
  }
  void give(void* memory) {
    if (const auto it = blocks_.find(memory); it != blocks_.end()) {
      munmap(memory, it->second);
      blocks_.erase(it);
    }
  }
  class Door {
   public:
    explicit Door(FarMemory& memory) : memory_(memory) {
      if (memory_.open_++ == 0) memory_.protect(PROT_READ | PROT_WRITE);
    }
    ~Door() {
      if (--memory_.open_ == 0) memory_.protect(PROT_NONE);
    }
    Door(const Door&) = delete;
    Door& operator=(const Door&) = delete;

   private:
    FarMemory& memory_;
  };

 private:
  void protect(int how) {
    for (const auto& [memory, bytes] : blocks_) EXPECT_EQ(mprotect(memory, bytes, how), 0);
  }
  std::map<void*, size_t> blocks_;
  int open_ = 0;
};

class FarDevice final : public Device {
 public:
  // dense: the weight layout of the dense kernels.
  explicit FarDevice(WeightLayout dense = WeightLayout::kPanels16)
      : inner_(cpu::open_device({.threads = 2}).value()), info_(inner_->info()) {
    info_.name = "far", info_.backend = Backend::kCuda, info_.layout = dense;
    for_each_op([&]<class Op>() { adopt<Op>(); });
  }
  const DeviceInfo& info() const override { return info_; }
  const Catalog& catalog() const override { return catalog_; }
  Result<void*> allocate(size_t bytes) override {
    if (void* memory = memory_.take(bytes)) return memory;
    return out_of_memory("far: no more");
  }
  void release(void* memory) override { memory_.give(memory); }
  bool shares_host_memory() const override { return false; }
  Result<void*> allocate_host(size_t bytes) override { return inner_->allocate_host(bytes); }
  void release_host(void* memory) override { inner_->release_host(memory); }
  int64_t free_bytes() const override { return inner_->free_bytes(); }
  Stream stream() override { return {Backend::kCuda, inner_->stream().native}; }
  Status copy(void* to, const void* from, size_t bytes, Stream stream) override {
    return later([=, this] { return inner_->copy(to, from, bytes, stream); });
  }
  Status wait(Stream) override {
    const FarMemory::Door door(memory_);
    Status status;
    for (const auto& work : pending_)
      if (status.ok()) status = work();
    pending_.clear();
    return status;
  }
  Result<std::unique_ptr<Recording>> record(Stream stream, const std::function<Status()>& f) override {
    recording_ = true;
    auto out = inner_->record(stream, f);
    recording_ = false;
    return out;
  }
  Status replay(const Recording& recording, Stream stream) override {
    return later([=, this, &recording] { return inner_->replay(recording, stream); });
  }

 private:
  // Presents the CPU's portable kernel for fragments as a kernel of this backend. Works with one device at a
  // time, because enqueue is a plain function and so its device is a static member.
  template <class Op>
  struct Adopted {
    static inline const Candidate<Op>* of = nullptr;
    static inline FarDevice* device = nullptr;
    static Status enqueue(const typename Op::Problem& p, const typename Op::Args& a, Workspace w, Stream s) {
      return device->later([=] { return of->enqueue(p, a, w, s); });
    }
    static inline Candidate<Op> card{};
  };
  // Runs work at once during a recording; otherwise defers it to the next wait.
  Status later(std::function<Status()> work) {
    if (recording_) return work();
    return pending_.push_back(std::move(work)), Status{};
  }

  template <class Op>
  void adopt() {
    using Here = Adopted<Op>;
    const auto table = inner_->catalog().template table<Op>();
    if (table.empty()) return;
    Here::of = table.back();  // portable kernels come after machine-specific ones
    Here::device = this;
    Here::card = *Here::of;
    Here::card.backend = Backend::kCuda;
    Here::card.enqueue = Here::enqueue;
    catalog_.add(Here::card);
  }

  FarMemory memory_;
  std::unique_ptr<Device> inner_;
  DeviceInfo info_;
  Catalog catalog_;
  std::vector<std::function<Status()>> pending_;
  bool recording_ = false;
};

}  // namespace sluice::test
