#include "backends/cpu/device.h"

#include <sched.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "backends/cpu/group.h"
#include "backends/cpu/memory.h"
#include "hwy/targets.h"

namespace sluice::cpu {
namespace {

constexpr size_t kAlignment = 256;
// A step reads weights once and in order. With pages of 4 KiB, the hardware prefetcher
// would stop at the end of every page, and more addresses would have to be translated.
constexpr size_t kHugePage = size_t{2} << 20, kHugeFrom = 2 * kHugePage;

int processors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::thread::hardware_concurrency());
}

// Highway's tables are indexed by the best target of a mask of targets. Returns the index for the enabled features.
int simd_index(uint32_t features) {
  int64_t targets = 0;
#if defined(__x86_64__)
  if (features & kAvx512) targets |= HWY_AVX3;
  if (features & kAvx2) targets |= HWY_AVX2;
#elif defined(__aarch64__)
  if (features & kNeon) targets |= HWY_NEON;
#endif
  hwy::ChosenTarget chosen;
  chosen.Update(targets);
  return static_cast<int>(chosen.GetIndex());
}

// Cost models need typical numbers, not a benchmark when the device opens: the sustained rates of a core of this class.
DeviceInfo describe(int threads, uint32_t features) {
  const double wide = (features & kAvx512) ? 2 : 1;
  DeviceInfo info{.name = "cpu", .backend = Backend::kCpu, .cores = threads, .cpu_features = features};
  info.mem_bytes_per_us = 13e3 * (threads < 8 ? threads : 8);
  info.f32_flops_per_us = 0.075e6 * wide * threads;
  info.bf16_flops_per_us = info.f32_flops_per_us;
  if (features & kAvx512Bf16) info.bf16_flops_per_us = 0.2e6 * threads;
  if (features & kAmxBf16) info.bf16_flops_per_us = 2e6 * threads;
  info.launch_us = threads > 1 ? 2 : 0.1;
  return info;
}

struct CpuRecording final : Recording {
  std::vector<std::function<void(Queue&)>> steps;
};

class CpuDevice final : public Device {
 public:
  CpuDevice(int threads, uint32_t features)
      : info_(describe(threads, features)), pool_(threads), queue_{{{}, &pool_, simd_index(features)}} {}

  int threads() const { return pool_.threads(); }
  const DeviceInfo& info() const override { return info_; }
  const Catalog& catalog() const override { return cpu::catalog(); }

  Result<void*> allocate(size_t bytes) override {
    const size_t alignment = bytes >= kHugeFrom ? kHugePage : kAlignment;
    const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    void* memory = rounded < bytes ? nullptr : std::aligned_alloc(alignment, rounded ? rounded : alignment);
    if (memory && alignment == kHugePage)
      madvise(memory, rounded, MADV_HUGEPAGE);  // a hint; a refusal is not an error
    if (!memory)
      return out_of_memory("cpu: wanted " + std::to_string(bytes) +
                           " bytes, which the system could not allocate");
    return memory;
  }
  void release(void* memory) override { std::free(memory); }
  bool shares_host_memory() const override { return true; }
  Result<void*> allocate_host(size_t bytes) override { return allocate(bytes); }
  void release_host(void* memory) override { release(memory); }
  int64_t free_bytes() const override { return memory_free(); }

  Stream stream() override { return {Backend::kCpu, &queue_}; }
  Status copy(void* to, const void* from, size_t bytes, Stream stream) override {
    return submit(stream, [=](Queue&) {
      if (bytes) std::memcpy(to, from, bytes);
    });
  }
  // Work runs during the enqueue.
  Status wait(Stream stream) override { return group_status(group_queue_of(stream)); }

  Result<std::unique_ptr<Recording>> record(Stream stream,
                                            const std::function<Status()>& enqueue_all) override {
    Queue& queue = queue_of(stream);
    if (queue.recording)
      return invalid(
          "cpu: record: wanted a stream that is not being recorded, found a recording in progress");
    auto out = std::make_unique<CpuRecording>();
    struct Ending {  // ends the recording even if the caller's enqueue_all throws an exception
      Queue& queue;
      ~Ending() { queue.recording = nullptr; }
    };
    queue.recording = &out->steps;
    const Ending at_return{queue};
    Status status = enqueue_all();
    if (!status.ok()) return status;
    return std::unique_ptr<Recording>(std::move(out));
  }
  Status replay(const Recording& recording, Stream stream) override {
    const auto* mine = dynamic_cast<const CpuRecording*>(&recording);
    if (!mine) return invalid("cpu: the recording was made on another backend");
    GroupQueue& queue = group_queue_of(stream);
    for (const auto& step : mine->steps) {
      SLUICE_TRY(group_status(queue));
      step(queue);
    }
    return group_status(queue);
  }

 private:
  DeviceInfo info_;
  ThreadPool pool_;
  GroupQueue queue_;
};

}  // namespace

std::string compiled_simd_levels() {
  std::string out;
  for (uint64_t left = static_cast<uint64_t>(HWY_TARGETS); left != 0; left &= left - 1)
    out += (out.empty() ? "" : " ") + std::string(hwy::TargetName(static_cast<int64_t>(left & -left)));
  return out;
}

Result<std::unique_ptr<Device>> open_device(const Options& options) {
  if (options.threads < 0 || options.threads > 1024)
    return invalid("cpu: threads: wanted 0 (all) to 1024, found " + std::to_string(options.threads));
  const int threads = options.threads ? options.threads : processors();
  auto device = std::make_unique<CpuDevice>(threads, detect_features() & options.features_allowed);
  if (device->threads() < threads)
    return out_of_memory("cpu: wanted " + std::to_string(threads) + " threads, found " +
                         std::to_string(device->threads()));
  options.log(LogLevel::kInfo, "device " + text(device->info()));
  return std::unique_ptr<Device>(std::move(device));
}

}  // namespace sluice::cpu
