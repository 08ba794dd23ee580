#include "backends/backends.h"
#include "capi/handles.h"

using namespace sluice;        // NOLINT: the C boundary names every type of the library
using namespace sluice::capi;  // NOLINT

namespace {

void forward(void* context, LogLevel level, const char* line) {
  const auto* device = static_cast<const sluice_device*>(context);
  if (device->log) device->log(device->log_context, static_cast<int>(level), line);
}

// Converts the caller's stream, which must be of the device's backend.
Status read_stream_of(const sluice_device& device, sluice_stream from, Stream* to) {
  SLUICE_TRY(need_pointer(from.native, "stream"));
  SLUICE_TRY(read_stream(from, to));
  const Backend wanted = device.device->info().backend;
  if (to->where == wanted) return {};
  return invalid(std::string("stream: wanted a stream of ") + text(wanted) + ", found a stream of " +
                 text(to->where));
}

sluice_stream to_c(Stream stream) {
  return {stream.where == Backend::kCuda ? SLUICE_CUDA : SLUICE_CPU, stream.native};
}

// Calls the caller's callback, and catches its exceptions, which must not unwind through a device that is recording.
Status call(sluice_enqueue enqueue, void* context) {
  try {
    return callback_status("record", static_cast<int32_t>(enqueue(context)));
  } catch (const std::bad_alloc&) {
    return out_of_memory("record: the callback ran out of memory");
  } catch (const std::exception& other) {
    return {Code::kDevice, std::string("record: the callback threw '") + other.what() + "'"};
  } catch (...) {
    return {Code::kDevice, "record: the callback threw an exception of an unknown type"};
  }
}

}  // namespace

extern "C" {

sluice_status sluice_open(const sluice_device_options* options, sluice_device** out, sluice_text* error) {
  return guarded(error, [&]() -> Status {
    SLUICE_TRY(need_pointer(out, "out"));
    sluice_device_options wanted{};
    if (options) SLUICE_TRY(read_growing("options", options, sizeof wanted, &wanted));
    if (wanted.backend != SLUICE_CPU && wanted.backend != SLUICE_CUDA)
      return invalid("backend: wanted SLUICE_CPU or SLUICE_CUDA, found " + std::to_string(wanted.backend));
    if (wanted.backend == SLUICE_CPU && wanted.index != 0)
      return invalid("index: wanted 0 (there is one CPU), found " + std::to_string(wanted.index));
    auto handle = std::make_unique<sluice_device>();
    handle->log = wanted.log;
    handle->log_context = wanted.log_context;
    auto opened = open_device({.backend = wanted.backend == SLUICE_CUDA ? Backend::kCuda : Backend::kCpu,
                               .threads = wanted.threads,
                               .gpu = wanted.index,
                               .dependent_launch = wanted.plain_launches == 0,
                               .log = {forward, handle.get()}});
    if (!opened.ok()) return opened.status();
    handle->device = std::move(opened).value();
    handle->text = text(handle->device->info());
    *out = handle.release();
    return {};
  });
}

void sluice_close(sluice_device* device) { delete device; }

const char* sluice_device_text(const sluice_device* device) { return device ? device->text.c_str() : ""; }

sluice_status sluice_allocate(sluice_device* device, size_t bytes, void** out, sluice_text* error) {
  return guarded(error, [&]() -> Status {
    SLUICE_TRY(need_pointer(device, "device"));
    SLUICE_TRY(need_pointer(out, "out"));
    const Result<void*> memory = device->device->allocate(bytes);
    if (!memory.ok()) return memory.status();
    *out = memory.value();
    return {};
  });
}

void sluice_release(sluice_device* device, void* memory) {
  if (device && memory) device->device->release(memory);
}

sluice_stream sluice_device_stream(sluice_device* device) {
  if (!device) return {SLUICE_CPU, nullptr};
  return to_c(device->device->stream());
}

sluice_status sluice_stream_wrap(sluice_device* device, void* native, sluice_stream* out,
                                 sluice_text* error) {
  return guarded(error, [&]() -> Status {
    SLUICE_TRY(need_pointer(device, "device"));
    SLUICE_TRY(need_pointer(out, "out"));
    const Result<Stream> stream = device->device->wrap(native);
    if (!stream.ok()) return stream.status();
    *out = to_c(stream.value());
    return {};
  });
}

sluice_status sluice_stream_retarget(sluice_device* device, sluice_stream wrapped, void* native,
                                     sluice_text* error) {
  return guarded(error, [&]() -> Status {
    SLUICE_TRY(need_pointer(device, "device"));
    Stream ours;
    SLUICE_TRY(read_stream_of(*device, wrapped, &ours));
    return device->device->retarget(ours, native);
  });
}

void sluice_stream_unwrap(sluice_device* device, sluice_stream stream) {
  Stream ours;
  if (device && stream.native && read_stream(stream, &ours).ok()) device->device->unwrap(ours);
}

sluice_status sluice_copy(sluice_device* device, void* to, const void* from, size_t bytes,
                          sluice_stream stream, sluice_text* error) {
  return guarded(error, [&]() -> Status {
    SLUICE_TRY(need_pointer(device, "device"));
    Stream on;
    SLUICE_TRY(read_stream_of(*device, stream, &on));
    if (bytes == 0) return {};
    SLUICE_TRY(need_pointer(to, "to"));
    SLUICE_TRY(need_pointer(from, "from"));
    return device->device->copy(to, from, bytes, on);
  });
}

sluice_status sluice_wait(sluice_device* device, sluice_stream stream, sluice_text* error) {
  return guarded(error, [&]() -> Status {
    SLUICE_TRY(need_pointer(device, "device"));
    Stream on;
    SLUICE_TRY(read_stream_of(*device, stream, &on));
    return device->device->wait(on);
  });
}

sluice_status sluice_record(sluice_device* device, sluice_stream stream, sluice_enqueue enqueue,
                            void* context, sluice_recording** out, sluice_text* error) {
  return guarded(error, [&]() -> Status {
    SLUICE_TRY(need_pointer(device, "device"));
    Stream on;
    SLUICE_TRY(read_stream_of(*device, stream, &on));
    SLUICE_TRY(need_pointer(reinterpret_cast<const void*>(enqueue), "enqueue"));
    SLUICE_TRY(need_pointer(out, "out"));
    auto handle = std::make_unique<sluice_recording>();
    auto recorded = device->device->record(on, [&] { return call(enqueue, context); });
    if (!recorded.ok()) return recorded.status();
    handle->recording = std::move(recorded).value();
    *out = handle.release();
    return {};
  });
}

sluice_status sluice_replay(sluice_device* device, const sluice_recording* recording, sluice_stream stream,
                            sluice_text* error) {
  return guarded(error, [&]() -> Status {
    SLUICE_TRY(need_pointer(device, "device"));
    SLUICE_TRY(need_pointer(recording, "recording"));
    Stream on;
    SLUICE_TRY(read_stream_of(*device, stream, &on));
    return device->device->replay(*recording->recording, on);
  });
}

void sluice_recording_destroy(sluice_recording* recording) { delete recording; }

}  // extern "C"
