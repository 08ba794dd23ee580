// What a device is. backends/cpu and backends/cuda implement this, nothing more.
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

// A recorded step. CUDA: an instantiated graph. CPU: the list of enqueues, replayed in order.
class Recording {
 public:
  virtual ~Recording() = default;
};

// A point in the work of a stream.
class Mark {
 public:
  virtual ~Mark() = default;
  Stream stream = {};  // where it was placed
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;
  virtual const Catalog& catalog() const = 0;

  // Memory aligned to 256 bytes, its content unspecified. Start-up only: never in a launch path.
  virtual Result<void*> allocate(size_t bytes) = 0;
  virtual void release(void* memory) = 0;
  // Whether the host may read and write what allocate() gives, as its own.
  virtual bool shares_host_memory() const = 0;
  // Host memory from and to which copy() runs at the device's full speed and concurrently with the caller's work (page-locked on
  // CUDA), aligned to 256 bytes. Start-up only. Released memory may be kept, at most 64 MiB, for a later request of the same size.
  virtual Result<void*> allocate_host(size_t bytes) = 0;
  virtual void release_host(void* memory) = 0;
  // About how much allocate() could still provide, so that a caller who needs much can refuse in time: systems overcommit
  // memory and end the process later.
  virtual int64_t free_bytes() const = 0;
  // What allocate() could have provided to one who has the device alone.
  virtual int64_t total_bytes() const { return free_bytes(); }

  virtual Stream stream() = 0;
  // A stream of the caller's (a cudaStream_t) as one of this device: launches and copies go there, also while the caller captures
  // it, and nothing else does. Start-up only: it takes memory. It must outlive the work enqueued on it, and goes with the device at
  // the latest. What the caller captures through it shares its counters, so such a graph runs neither beside itself nor beside
  // other work of the same wrapped stream: wrapping a stream twice gives two that may. kInvalidArgument: a stream of another
  // device, one that is being captured at this moment; on a device whose work runs at once, anything but null, which is stream().
  virtual Result<Stream> wrap(void* native) {
    if (!native) return stream();
    return invalid(std::string(text(info().backend)) +
                   ": wrap: wanted null, as this device has no streams but its own, found a pointer");
  }
  // Points what wrap() gave at another stream of the caller's, from now on: the counters go with it. Takes no memory, and either stream
  // may be in capture. kInvalidArgument as wrap(), and what wrap() did not give.
  virtual Status retarget(Stream wrapped, void* native) {
    if (!native && wrapped.native == stream().native) return {};
    return invalid(
        std::string(text(info().backend)) +
        ": retarget: wanted null and the device's own stream, as this device has no others, found " +
        (native ? "a pointer" : "another stream"));
  }
  // Ends what wrap() gave, after its work has run; the caller's stream stays. Anything else is left alone.
  virtual void unwrap(Stream) {}
  // Enqueues a copy from, to or inside the device's memory. `from` must stay as it is until the stream has done it.
  virtual Status copy(void* to, const void* from, size_t bytes, Stream stream) = 0;
  // Blocks until the stream is idle. Asynchronous device errors surface here.
  virtual Status wait(Stream stream) = 0;

  // For callers that wait for a part of a stream's work. Start-up only: it takes memory.
  virtual Result<std::unique_ptr<Mark>> make_mark() { return std::make_unique<Mark>(); }
  // The mark now stands behind all that the stream has been given so far.
  virtual Status place(Mark& mark, Stream stream) { return mark.stream = stream, Status{}; }
  // Blocks until the work before the mark is done; at once, of one that stands nowhere yet. Asynchronous device errors surface
  // here.
  virtual Status wait_for(const Mark& mark) { return mark.stream.native ? wait(mark.stream) : Status{}; }

  // Runs `enqueue_all` once without executing what it enqueues, and keeps that for replay. Tensors and
  // workspaces it named must stay where they are for as long as the recording lives.
  virtual Result<std::unique_ptr<Recording>> record(Stream stream,
                                                    const std::function<Status()>& enqueue_all) = 0;
  virtual Status replay(const Recording& recording, Stream stream) = 0;
};

}  // namespace sluice
