// The opaque types of sluice.h, and helpers of calls across the C boundary.
#pragma once
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "base/printable.h"
#include "capi/shared_moes.h"
#include "dispatch/group.h"
#include "graph/any_op.h"
#include "nn/moe/load.h"
#include "sluice/group.h"
#include "sluice/sluice.h"

struct sluice_device {
  sluice_log log = nullptr;
  void* log_context = nullptr;
  std::unique_ptr<sluice::Device> device;
  std::string text;
  // declared last, because its layers must be destroyed before the device
  mutable sluice::capi::SharedMoes moes;
};
struct sluice_plan {
  std::unique_ptr<sluice::AnyPlan> plan;
  std::string kernel;  // a copy with a terminating NUL, which the plan's string_view lacks
};
struct sluice_table {
  std::unique_ptr<sluice::AnyTable> table;
  std::vector<std::string> kernels;  // kernel of each step
};
struct sluice_layer {
  std::shared_ptr<const sluice::Moe> moe;
  std::unique_ptr<sluice::LoadedMoe> weights;  // memory of the weights; set even before weights are loaded
  const sluice::Device* device = nullptr;
  int64_t tokens_max = 0;
  bool has_weights = false;
  std::string text;
};
struct sluice_group {
  std::unique_ptr<sluice::Group> group;
};
struct sluice_recording {
  std::unique_ptr<sluice::Recording> recording;
};

namespace sluice::capi {

// Writes `from` as sluice_text specifies.
inline void write_text(std::string_view from, sluice_text* to) {
  if (!to) return;
  to->needed = from.size() + 1;
  if (!to->data || to->capacity == 0) return;
  const size_t kept = from.size() < to->capacity ? from.size() : to->capacity - 1;
  std::memcpy(to->data, from.data(), kept);
  to->data[kept] = '\0';
}

// Like write_text(), but fails if the buffer is too small for the whole text.
inline Status write_whole(std::string_view from, sluice_text* to) {
  write_text(from, to);
  if (to->data && to->needed <= to->capacity) return {};
  return invalid("out: wanted a buffer of " + std::to_string(to->needed) + " bytes, found a buffer of " +
                 std::to_string(to->data ? to->capacity : 0));
}

inline sluice_status report(const Status& status, sluice_text* error) {
  if (!status.ok()) write_text(printable(status.message), error);  // tensor and file names are untrusted
  return static_cast<sluice_status>(status.code);
}

// Runs the body of a function that can fail, and turns exceptions into statuses, so that none leaves the library.
template <class Body>
sluice_status guarded(sluice_text* error, Body body) {
  try {
    return report(body(), error);
  } catch (const std::bad_alloc&) {
    // there is no memory even for a message
    if (error && error->data && error->capacity > 0) error->data[0] = '\0';
    return SLUICE_OUT_OF_MEMORY;
  } catch (const std::exception& other) {  // for example if a thread could not start
    write_text(other.what(), error);
    return SLUICE_DEVICE;
  } catch (...) {
    write_text("a callback threw an exception of an unknown type", error);
    return SLUICE_DEVICE;
  }
}

inline Status need_pointer(const void* pointer, const char* name) {
  return pointer ? Status{} : invalid(std::string(name) + ": wanted a pointer, found null");
}

// Reads a struct that later versions extend (sluice.h: Growth). from->size: its size in the caller's header; `minimum`: in its first version.
template <class T>
Status read_growing(const char* name, const T* from, size_t minimum, T* to) {
  constexpr size_t kMax = 4096;  // far above any version's size; a larger value is an error
  SLUICE_TRY(need_pointer(from, name));
  if (from->size < minimum || from->size > kMax)
    return invalid(std::string(name) + ".size: wanted the size of the struct, from " +
                   std::to_string(minimum) + " to " + std::to_string(sizeof(T)) + " in this version, found " +
                   std::to_string(from->size));
  *to = T{};
  std::memcpy(to, from, from->size < sizeof(T) ? from->size : sizeof(T));
  const auto* bytes = reinterpret_cast<const unsigned char*>(from);
  for (size_t i = sizeof(T); i < from->size; ++i)
    if (bytes[i] != 0)
      return invalid(std::string(name) +
                     ": wanted zeros after the fields of this version (" SLUICE_VERSION
                     "), found a field of a later version at byte " +
                     std::to_string(i));
  return {};
}

inline Policy policy_of(const sluice_policy* policy) {
  if (!policy) return {};
  return {.force = policy->force ? policy->force : "", .batch_invariant = policy->batch_invariant != 0};
}

// Converts a stream to the library's type.
inline Status read_stream(sluice_stream from, Stream* to) {
  if (from.backend != SLUICE_CPU && from.backend != SLUICE_CUDA)
    return invalid("stream: backend: wanted a sluice_backend, found " + std::to_string(from.backend));
  *to = {from.backend == SLUICE_CUDA ? Backend::kCuda : Backend::kCpu,
         static_cast<DeviceQueue*>(from.native)};
  return {};
}

// Converts a tensor to the library's type. Allocates only for the message of an error, which contains `name`.
Status read_tensor(const char* name, const sluice_tensor& from, Tensor* to);

// Each function calls `visit` with the description of a field or of a tensor.
void visit_field(const Field& field, sluice_field_visitor visit, void* context);
void visit_slot(const SlotSpec& spec, sluice_slot_visitor visit, void* context);

// Converts the value that the caller's callback `what` returned. A number that is not a sluice_status
// becomes SLUICE_INVALID_ARGUMENT.
Status callback_status(const char* what, int32_t returned);

// The device that a question is about: `device`, or the known device `device_name`. Exactly one must be given.
Result<DeviceInfo> asked_device(const sluice_device* device, const char* device_name);

// Parses a problem of the operation `op`.
Result<std::unique_ptr<AnyProblem>> problem_of(const char* op, const char* problem);

}  // namespace sluice::capi
