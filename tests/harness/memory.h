// Guarded tensors on the host and on the device under test.
#pragma once
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "dispatch/device.h"
#include "ops/op.h"

namespace sluice::test {

constexpr int64_t kGuardBytes = 256;
constexpr int kGuardPattern = 0x5C;

// The content of an output before the kernel runs: NaN for floats, an absurd number for integers, because -1
// is a legal id.
inline int poison_of(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kE4M3 ? 0xFF : 0xA7;
}

// kOddRows: strided rows, and a first element one element after a multiple of 64 bytes, unless the contract requires aligned rows.
enum class Spread : uint8_t { kContiguous, kStridedRows, kOddRows };

// One tensor in host memory: guard | rows, with gaps between them if strided | guard.
class GuardedTensor {
 public:
  GuardedTensor(const SlotSpec& spec, Spread spread) : role_(spec.role) {
    Tensor& t = view_;
    t.dtype = spec.dtype;
    t.rank = static_cast<int8_t>(spec.rank);
    t.shape = spec.shape;
    int64_t stride = 1;
    for (int i = spec.rank - 1; i >= 0; --i) {
      t.stride[i] = stride;
      stride *= t.shape[i];
    }
    if (spread == Spread::kOddRows && spec.row_align == 1) offset_ = std::max(1, bits_of(t.dtype) / 8);
    if (spread != Spread::kContiguous && spec.rows == Rows::kMayBeStrided && spec.rank >= 2)
      t.stride[0] += spec.row_align == 1 ? 3 : 8 * spec.row_align / bits_of(t.dtype);
    row_bytes_ =
        spec.rank ? bytes_of(t.dtype, t.shape[0] ? stride / std::max<int64_t>(t.shape[0], 1) : 0) : 0;
    const int64_t last = t.rank && t.shape[0] > 0 ? t.shape[0] - 1 : 0;
    payload_ = t.rank == 0 || t.shape[0] == 0 ? 0 : bytes_of(t.dtype, last * t.stride[0]) + row_bytes_;
    bytes_.assign(static_cast<size_t>(payload_ + 2 * kGuardBytes + 64 + offset_), std::byte{kGuardPattern});
    t.data = base();
    poison();
  }
  Tensor& view() { return view_; }
  const Tensor& view() const { return view_; }
  std::byte* start() { return base() - kGuardBytes; }
  // Bytes from a multiple of 64 to the first element.
  int64_t offset() const { return offset_; }
  int64_t total_bytes() const { return payload_ + 2 * kGuardBytes; }

  // Overwrites the elements of outputs, but neither guards nor gaps between rows.
  void poison() {
    for_rows(
        [&](std::byte* row) { std::memset(row, poison_of(view_.dtype), static_cast<size_t>(row_bytes_)); });
  }
  // Whether guards and gaps are still unchanged.
  bool intact() const {
    auto* self = const_cast<GuardedTensor*>(this);
    const std::byte* next =
        self->start();  // the first byte after the rows so far, which are in the order of their addresses
    const auto guarded = [&](const std::byte* to) {
      return std::all_of(next, to, [](std::byte b) { return b == std::byte{kGuardPattern}; });
    };
    bool ours = true;
    self->for_rows([&](const std::byte* row) {
      ours &= guarded(row);
      next = row + row_bytes_;
    });
    return ours && guarded(self->start() + total_bytes());
  }
  Role role() const { return role_; }

 private:
  std::byte* base() {
    const auto raw = reinterpret_cast<uintptr_t>(bytes_.data()) + kGuardBytes;
    return reinterpret_cast<std::byte*>((raw + 63) / 64 * 64) + offset_;  // 64: as usual tensor allocators
  }
  template <class F>
  void for_rows(F f) {
    const int64_t rows = view_.rank ? view_.shape[0] : 0;
    if (row_bytes_ == 0) return;
    for (int64_t r = 0; r < rows; ++r) f(base() + bytes_of(view_.dtype, r * view_.stride[0]));
  }
  Tensor view_;
  Role role_;
  int64_t row_bytes_ = 0, payload_ = 0, offset_ = 0;
  std::vector<std::byte> bytes_;
};

// All tensors of an operation's Args.
template <class Op>
class HostArgs {
 public:
  HostArgs(const typename Op::Problem& problem, Spread spread) {
    Op::slots(problem, [&](const SlotSpec& spec, Tensor Op::Args::*member) {
      if (!spec.used) return;
      tensors_.push_back({std::string(spec.name), member, std::make_unique<GuardedTensor>(spec, spread)});
      args_.*member = tensors_.back().memory->view();
    });
  }
  typename Op::Args& args() { return args_; }
  const typename Op::Args& args() const { return args_; }
  struct Entry {
    std::string name;
    Tensor Op::Args::*member;
    std::unique_ptr<GuardedTensor> memory;
  };
  std::vector<Entry>& tensors() { return tensors_; }
  GuardedTensor* find(std::string_view name) {
    for (Entry& e : tensors_)
      if (e.name == name) return e.memory.get();
    return nullptr;
  }

 private:
  typename Op::Args args_;
  std::vector<Entry> tensors_;
};

// Copies one operation's inputs to another operation's tensors of equal names and shapes, whose rows may be
// strided. For operations that begin with another operation.
template <class From, class To>
void copy_inputs(HostArgs<From>& from, HostArgs<To>& to) {
  for (auto& e : from.tensors()) {
    GuardedTensor* into = to.find(e.name);
    if (e.memory->role() != Role::kIn || !into) continue;
    const Tensor a = e.memory->view(), b = into->view();
    const int64_t rows = a.rank > 0 ? a.shape[0] : 1, each = rows > 0 ? elements_of(a) / rows : 0;
    for (int64_t r = 0; r < rows; ++r)
      std::memcpy(static_cast<std::byte*>(b.data) + bytes_of(b.dtype, r * b.stride[0]),
                  static_cast<const std::byte*>(a.data) + bytes_of(a.dtype, r * a.stride[0]),
                  static_cast<size_t>(bytes_of(a.dtype, each)));
  }
}

// The same tensors in device memory, guards included.
template <class Op>
class DeviceArgs {
 public:
  DeviceArgs(Device& device, HostArgs<Op>& host) : device_(device), host_(host) {
    for (auto& e : host.tensors()) {
      const int64_t offset = e.memory->offset();
      auto* memory = static_cast<std::byte*>(
          device.allocate(static_cast<size_t>(e.memory->total_bytes() + offset)).value());
      blocks_.push_back(memory);
      starts_.push_back(memory + offset);
      Tensor view = e.memory->view();
      view.where = device.info().backend;
      view.data = memory + offset + kGuardBytes;
      args_.*(e.member) = view;
    }
  }
  ~DeviceArgs() {
    for (void* b : blocks_) device_.release(b);
  }
  DeviceArgs(const DeviceArgs&) = delete;
  DeviceArgs& operator=(const DeviceArgs&) = delete;
  const typename Op::Args& args() const { return args_; }
  Status upload(Stream stream) {
    for (size_t i = 0; i < blocks_.size(); ++i) {
      GuardedTensor& t = *host_.tensors()[i].memory;
      SLUICE_TRY(device_.copy(starts_[i], t.start(), static_cast<size_t>(t.total_bytes()), stream));
    }
    return device_.wait(stream);
  }
  Status download(Stream stream) {
    for (size_t i = 0; i < blocks_.size(); ++i) {
      GuardedTensor& t = *host_.tensors()[i].memory;
      SLUICE_TRY(device_.copy(t.start(), starts_[i], static_cast<size_t>(t.total_bytes()), stream));
    }
    return device_.wait(stream);
  }

 private:
  Device& device_;
  HostArgs<Op>& host_;
  std::vector<void*> blocks_;
  std::vector<std::byte*> starts_;  // of the guards in front
  typename Op::Args args_;
};

}  // namespace sluice::test
