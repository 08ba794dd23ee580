// The arguments of a launch.
#pragma once
#include <span>
#include <string>

#include "capi/handles.h"

namespace sluice::capi {

// Converts the tensors of a launch to the library's types without allocating.
class LaunchArgs {
 public:
  Status read(const sluice_launch* launch) {
    SLUICE_TRY(need_pointer(launch, "launch"));
    if (launch->arg_count > SLUICE_ARGS_MAX)
      return invalid("arg_count: wanted at most " + std::to_string(SLUICE_ARGS_MAX) + ", found " +
                     std::to_string(launch->arg_count));
    if (launch->arg_count > 0) SLUICE_TRY(need_pointer(launch->args, "args"));
    for (; count_ < launch->arg_count; ++count_) SLUICE_TRY(read_one(launch->args[count_]));
    const auto beyond = reinterpret_cast<uintptr_t>(launch->workspace) % kWorkspaceAlignment;
    if (launch->workspace_bytes > 0 && beyond != 0)
      return invalid("workspace: wanted memory aligned to " + std::to_string(kWorkspaceAlignment) +
                     " bytes, found a pointer " + std::to_string(beyond) + " bytes past such an address");
    workspace_ = {static_cast<std::byte*>(launch->workspace), launch->workspace_bytes};
    return read_stream(launch->stream, &stream_);
  }
  std::span<const NamedTensor> args() const { return {args_, count_}; }
  Workspace workspace() const { return workspace_; }
  Stream stream() const { return stream_; }

 private:
  static constexpr uintptr_t kWorkspaceAlignment = 256;  // documented at sluice_launch
  Status read_one(const sluice_arg& from) {
    if (!from.name) return invalid("args[" + std::to_string(count_) + "].name: wanted a name, found null");
    NamedTensor& to = args_[count_];
    to.name = from.name;
    return read_tensor(from.name, from.tensor, &to.tensor);
  }
  NamedTensor args_[SLUICE_ARGS_MAX];
  size_t count_ = 0;
  Workspace workspace_;
  Stream stream_;
};

}  // namespace sluice::capi
