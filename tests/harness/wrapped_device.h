// Devices that differ from another device in one detail.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "dispatch/device.h"

namespace sluice::test {

// Forwards all calls to `inner`, which must outlive it.
class WrappedDevice : public Device {
 public:
  explicit WrappedDevice(Device& inner) : inner_(inner) {}
  const DeviceInfo& info() const override { return inner_.info(); }
  const Catalog& catalog() const override { return inner_.catalog(); }
  Result<void*> allocate(size_t bytes) override { return inner_.allocate(bytes); }
  void release(void* memory) override { inner_.release(memory); }
  bool shares_host_memory() const override { return inner_.shares_host_memory(); }
  Result<void*> allocate_host(size_t bytes) override { return inner_.allocate_host(bytes); }
  void release_host(void* memory) override { inner_.release_host(memory); }
  int64_t free_bytes() const override { return inner_.free_bytes(); }
  int64_t total_bytes() const override { return inner_.total_bytes(); }
  Stream stream() override { return inner_.stream(); }
  Status copy(void* to, const void* from, size_t bytes, Stream s) override {
    return inner_.copy(to, from, bytes, s);
  }
  Status wait(Stream s) override { return inner_.wait(s); }
  Result<std::unique_ptr<Mark>> make_mark() override { return inner_.make_mark(); }
  Status place(Mark& mark, Stream s) override { return inner_.place(mark, s); }
  Status wait_for(const Mark& mark) override { return inner_.wait_for(mark); }
  Result<std::unique_ptr<Recording>> record(Stream s, const std::function<Status()>& f) override {
    return inner_.record(s, f);
  }
  Status replay(const Recording& recording, Stream s) override { return inner_.replay(recording, s); }

 protected:
  Device& inner_;
};

// Fills allocated memory with NaN of every type, so that reads before writes become visible.
class PoisonedDevice final : public WrappedDevice {
 public:
  using WrappedDevice::WrappedDevice;
  Result<void*> allocate(size_t bytes) override {
    auto memory = inner_.allocate(bytes);
    if (!memory.ok()) return memory;
    const std::vector<std::byte> poison(bytes, std::byte{0xFF});
    SLUICE_TRY(inner_.copy(memory.value(), poison.data(), bytes, inner_.stream()));
    SLUICE_TRY(inner_.wait(inner_.stream()));
    return memory;
  }
};

// Reports little free memory.
class ScarceDevice final : public WrappedDevice {
 public:
  ScarceDevice(Device& inner, int64_t free, int64_t total)
      : WrappedDevice(inner), free_(free), total_(total) {}
  int64_t free_bytes() const override { return free_; }
  int64_t total_bytes() const override { return total_; }

 private:
  int64_t free_, total_;
};

// Counts allocations that are not released, host memory included.
class CountingDevice final : public WrappedDevice {
 public:
  using WrappedDevice::WrappedDevice;
  int64_t held() const { return held_; }
  Result<void*> allocate(size_t bytes) override { return count(inner_.allocate(bytes)); }
  void release(void* memory) override { inner_.release(memory), held_ -= memory != nullptr; }
  Result<void*> allocate_host(size_t bytes) override { return count(inner_.allocate_host(bytes)); }
  void release_host(void* memory) override { inner_.release_host(memory), held_ -= memory != nullptr; }

 private:
  Result<void*> count(Result<void*> memory) {
    held_ += memory.ok() && memory.value() != nullptr;
    return memory;
  }
  int64_t held_ = 0;
};

// Work fails `times` times, beginning with wait_for call number `first`, counted from 0.
class FailingDevice final : public WrappedDevice {
 public:
  FailingDevice(Device& inner, int first, int times) : WrappedDevice(inner), first_(first), times_(times) {}
  Status wait_for(const Mark& mark) override {
    const int call = calls_++;
    if (call >= first_ && call < first_ + times_) return {Code::kDevice, "a fault"};
    return inner_.wait_for(mark);
  }

 private:
  int first_, times_, calls_ = 0;
};

}  // namespace sluice::test
