// Gives the host access to an operation's tensors.
#pragma once
#include <utility>
#include <vector>

#include "dispatch/device.h"
#include "ops/op.h"

namespace sluice {

// Refers to the tensors themselves if the device shares the host's memory; otherwise holds copies with the same strides.
template <class Op>
class HostCopy {
 public:
  // Copies the operation's inputs. kInvalidArgument as in Plan::run, for tensors that do not fit the problem.
  static Result<HostCopy> make(Device& device, const typename Op::Problem& problem,
                               const typename Op::Args& args, Stream stream) {
    SLUICE_TRY(check_args<Op>(problem, args, device.info().backend));
    HostCopy out(device, args);
    if (device.shares_host_memory()) return out;
    Op::slots(problem, [&](const SlotSpec& spec, Tensor Op::Args::*member) {
      if (!spec.used) return;
      Tensor& t = out.args_.*member;
      Entry& e = out.copies_.emplace_back(Entry{spec.role, t, {}});
      e.bytes.resize(static_cast<size_t>(span_bytes(t)));
      t.data = e.bytes.data();
      t.where = Backend::kCpu;
    });
    SLUICE_TRY(out.copy_all(Role::kOut, stream));
    return out;
  }
  const typename Op::Args& args() const { return args_; }
  // Waits for the stream and copies the operation's outputs.
  Status fetch(Stream stream) { return copy_all(Role::kIn, stream); }

 private:
  struct Entry {
    Role role;
    Tensor on_device;
    std::vector<std::byte> bytes;  // its buffer does not move when the entry moves
  };
  HostCopy(Device& device, const typename Op::Args& args) : device_(&device), args_(args) {}

  // Bytes from the first element to the end of the last element.
  static int64_t span_bytes(const Tensor& t) {
    if (elements_of(t) == 0) return 0;
    int64_t last = 0;
    for (size_t i = 0; i < static_cast<size_t>(t.rank); ++i) last += (t.shape[i] - 1) * t.stride[i];
    return bytes_of(t.dtype, last + 1);
  }
  Status copy_all(Role but, Stream stream) {
    for (Entry& e : copies_)
      if (e.role != but) SLUICE_TRY(device_->copy(e.bytes.data(), e.on_device.data, e.bytes.size(), stream));
    return device_->wait(stream);
  }

  Device* device_;
  typename Op::Args args_;
  std::vector<Entry> copies_;
};

}  // namespace sluice
