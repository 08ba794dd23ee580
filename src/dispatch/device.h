// The device interface. backends/cpu and backends/cuda implement it, and other code uses them only through it.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>

#include "base/log.h"
#include "base/status.h"
#include "base/tensor.h"
#include "dispatch/candidate.h"
#include "dispatch/catalog.h"

namespace sluice {

// A captured step. CUDA: an instantiated graph. CPU: a list of enqueued calls, which replay() repeats in order.
class Recording {
 public:
  virtual ~Recording() = default;
};

// A point in a stream's work, like a CUDA event.
class Mark {
 public:
  virtual ~Mark() = default;
  Stream stream = {};  // the stream on which it was placed
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;
  virtual const Catalog& catalog() const = 0;

  // Allocates memory aligned to 256 bytes, with unspecified content. For start-up only: never on a launch path.
  virtual Result<void*> allocate(size_t bytes) = 0;
  virtual void release(void* memory) = 0;
  // Whether the host can read and write memory from allocate().
  virtual bool shares_host_memory() const = 0;
  // Allocates host memory, aligned to 256 bytes, that copy() reads and writes at the device's full speed
  // and concurrently with the caller's work (page-locked on CUDA). For start-up only. Up to 64 MiB of
  // released memory may be kept for later requests of the same size.
  virtual Result<void*> allocate_host(size_t bytes) = 0;
  virtual void release_host(void* memory) = 0;
  // Approximate bytes that allocate() could still provide. Callers use it to reject large requests early,
  // because the operating system overcommits memory and would kill the process later.
  virtual int64_t free_bytes() const = 0;
  // Bytes that allocate() could provide if nothing else used the device.
  virtual int64_t total_bytes() const { return free_bytes(); }

  virtual Stream stream() = 0;
  // Makes a stream of this device out of the caller's stream (a cudaStream_t): launches and copies go to that
  // stream alone, even while the caller captures it. For start-up only, because it allocates memory. The
  // wrapped stream must outlive the work enqueued on it; if unwrap() does not release it, the device's
  // destructor does. Graphs captured through a wrapped stream share its counters, so such a graph must not
  // run concurrently with itself or with other work of that wrapped stream. Each call of wrap() makes a
  // separate set of counters. kInvalidArgument: a stream of another device, a stream under capture; or, on a
  // device that runs work immediately, a pointer that is not null (null gives stream()).
  virtual Result<Stream> wrap(void* native) {
    if (!native) return stream();
    return invalid(std::string(text(info().backend)) +
                   ": wrap: wanted null (this device has no other streams), found a pointer");
  }
  // From now on, enqueues work of a stream from wrap() on another stream of the caller; the counters stay the
  // same. Allocates no memory, and either stream may be under capture. kInvalidArgument as in
  // wrap(), and for a stream that is not from wrap().
  virtual Status retarget(Stream wrapped, void* native) {
    if (!native && wrapped.native == stream().native) return {};
    return invalid(
        std::string(text(info().backend)) +
        ": retarget: wanted null and the device's own stream (this device has no other streams), found " +
        (native ? "a pointer" : "another stream"));
  }
  // Releases a stream from wrap() after its work has run. The caller's stream is not affected; any other stream is ignored.
  virtual void unwrap(Stream) {}
  // Enqueues a copy to, from or inside device memory. `from` must not change until the stream has finished the copy.
  virtual Status copy(void* to, const void* from, size_t bytes, Stream stream) = 0;
  // Blocks until the stream is idle, and reports asynchronous device errors.
  virtual Status wait(Stream stream) = 0;

  // Makes a mark, for callers that wait for part of a stream's work. For start-up only, because it allocates memory.
  virtual Result<std::unique_ptr<Mark>> make_mark() { return std::make_unique<Mark>(); }
  // Places the mark after all work enqueued on the stream so far.
  virtual Status place(Mark& mark, Stream stream) { return mark.stream = stream, Status{}; }
  // Blocks until the work before the mark has finished; returns at once if the mark was never placed.
  // Reports asynchronous device errors.
  virtual Status wait_for(const Mark& mark) { return mark.stream.native ? wait(mark.stream) : Status{}; }
  // Whether the work before the mark has finished; true if the mark was never placed. Reports asynchronous device errors. Does not
  // block on a device that runs work asynchronously.
  virtual Result<bool> passed(const Mark& mark) {
    SLUICE_TRY(wait_for(mark));
    return true;
  }

  // Calls `enqueue_all` once and captures what it enqueues without running it. The tensors and workspaces
  // passed inside must keep their addresses while the recording exists.
  virtual Result<std::unique_ptr<Recording>> record(Stream stream,
                                                    const std::function<Status()>& enqueue_all) = 0;
  virtual Status replay(const Recording& recording, Stream stream) = 0;
};

}  // namespace sluice
