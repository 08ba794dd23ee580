#include "backends/cuda/device.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "backends/cuda/gpu_scope.h"
#include "backends/cuda/group/group.h"
#include "backends/cuda/queue.h"
#include "dispatch/explain.h"

namespace sluice::cuda {
namespace {

// Describes the GPU for the cost models. For a known GPU the values are measured. For any other
// GPU they are the driver's values times the fraction of the data sheet that an H200 reaches.
DeviceInfo describe(const cudaDeviceProp& gpu, int index) {
  DeviceInfo info = known_device("h200").value();
  info.index = index;
  const double cores = info.cores;
  info.sm = gpu.major * 10 + gpu.minor;
  info.cores = gpu.multiProcessorCount;
  if (std::strstr(gpu.name, "H200") && info.cores == static_cast<int>(cores)) return info;
  constexpr double kReadShare = 4.60 / 4.81;
  int kilohertz = 0, bus_bits = 0;
  cudaDeviceGetAttribute(&kilohertz, cudaDevAttrMemoryClockRate, index);
  cudaDeviceGetAttribute(&bus_bits, cudaDevAttrGlobalMemoryBusWidth, index);
  info.name = gpu.name;
  const double peak = 2e-3 * kilohertz * bus_bits / 8;  // two transfers per clock
  if (peak > 0) info.mem_bytes_per_us = kReadShare * peak;
  info.bf16_flops_per_us *= info.cores / cores;
  info.f32_flops_per_us *= info.cores / cores;
  return info;
}

std::string names_of(const Queue& queue) {
  const uint64_t open = queue.enqueued - queue.done;
  if (open == 0) return "no kernel of Sluice";
  const uint64_t kept = std::min<uint64_t>(open, Queue::kNames);
  std::string out = kept < open ? std::to_string(open - kept) + " more, " : "";
  std::string_view last;
  int times = 0;
  const auto flush = [&] {
    if (times == 0) return;
    if (!out.empty() && out.back() != ' ') out += ", ";
    out += std::string(last) + (times > 1 ? " x " + std::to_string(times) : "");
  };
  for (uint64_t i = queue.enqueued - kept; i < queue.enqueued; ++i) {
    const std::string_view name = queue.names[i % Queue::kNames];
    if (name != last) {
      flush();
      last = name;
      times = 0;
    }
    ++times;
  }
  flush();
  return out;
}

Result<uint32_t*> make_grid_words(cudaStream_t stream) {
  constexpr size_t kBytes = kGridWordsBytes + kGridSumBytes;
  void* memory = nullptr;
  SLUICE_TRY(check(cudaMalloc(&memory, kBytes), "memory for counters"));
  Status cleared = check(cudaMemsetAsync(memory, 0, kBytes, stream), "clearing counters");
  if (cleared.ok()) cleared = check(cudaStreamSynchronize(stream), "clearing counters");
  if (cleared.ok()) return static_cast<uint32_t*>(memory);
  cudaFree(memory);
  return cleared;
}

// While this object exists, CUDA calls of this thread do not invalidate a capture that another thread has begun.
class RelaxedCapture {
 public:
  RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

Status need_no_capture(cudaStream_t stream, const char* doing) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  SLUICE_TRY(check(cudaStreamIsCapturing(stream, &status), doing));
  if (status == cudaStreamCaptureStatusNone) return {};
  return invalid(std::string("cuda: ") + doing +
                 ": wanted a stream that is not being captured, found a stream under capture");
}

struct CudaRecording final : Recording {
  cudaGraphExec_t graph = nullptr;
  uint32_t* grid_words = nullptr;
  int device = 0;
  std::vector<std::string_view> kernels;
  ~CudaRecording() override {
    const OnGpuScope on(device);
    if (graph) cudaGraphExecDestroy(graph);
    if (grid_words) cudaFree(grid_words);
  }
};

struct CudaMark final : Mark {
  cudaEvent_t event = nullptr;
  int device = 0;
  uint64_t enqueued = 0;  // number of kernels enqueued on the queue before the mark
  ~CudaMark() override {
    const OnGpuScope on(device);
    if (event) cudaEventDestroy(event);
  }
};

class CudaDevice final : public Device {
 public:
  CudaDevice(DeviceInfo info, const Options& options) : info_(std::move(info)) {
    queue_.device = options.index;
    queue_.sms = info_.cores;
    queue_.dependent = options.dependent;
    queue_.member = &member_;
    for_each_op([&]<class Op>() {
      for (const Candidate<Op>* c : cuda::catalog().table<Op>())
        if (!c->planned) built_.add(*c);
    });
  }
  ~CudaDevice() override {
    const OnGpuScope on(queue_.device);
    if (queue_.stream) {
      cudaStreamSynchronize(queue_.stream);
      cudaStreamDestroy(queue_.stream);
    }
    if (queue_.grid_words) cudaFree(queue_.grid_words);
    for (const auto& queue : wrapped_) cudaFree(queue->grid_words);
    if (spare_.memory) cudaFreeHost(spare_.memory);
  }
  Status start() {
    const OnGpuScope on(queue_.device);
    SLUICE_TRY(check(on.error(), "opening the GPU"));
    SLUICE_TRY(check(cudaStreamCreateWithFlags(&queue_.stream, cudaStreamNonBlocking), "making a stream"));
    auto grid_words = make_grid_words(queue_.stream);
    if (!grid_words.ok()) return grid_words.status();
    queue_.grid_words = grid_words.value();
    return {};
  }

  const DeviceInfo& info() const override { return info_; }
  const Catalog& catalog() const override { return built_; }

  Result<void*> allocate(size_t bytes) override {
    void* memory = nullptr;
    const OnGpuScope on(queue_.device);
    SLUICE_TRY(check(on.error(), "allocate"));
    const cudaError_t error = cudaMalloc(&memory, std::max<size_t>(bytes, 1));
    if (error == cudaSuccess) return memory;
    (void)cudaGetLastError();
    if (error != cudaErrorMemoryAllocation)
      return check(error, "allocate " + std::to_string(bytes) + " bytes");
    return out_of_memory("cuda: wanted " + std::to_string(bytes) + " bytes, the GPU has " +
                         std::to_string(free_bytes()) + " free");
  }
  void release(void* memory) override {
    if (!memory) return;
    const OnGpuScope on(queue_.device);
    cudaFree(memory);
  }
  bool shares_host_memory() const override { return false; }
  Result<void*> allocate_host(size_t bytes) override {
    void* memory = nullptr;
    const OnGpuScope on(queue_.device);
    SLUICE_TRY(check(on.error(), "allocate_host"));
    const std::lock_guard lock(host_mutex_);
    if (spare_.bytes == bytes) {
      std::swap(memory, spare_.memory);
      spare_.bytes = 0;
    }
    if (!memory) {
      const cudaError_t error = cudaMallocHost(&memory, std::max<size_t>(bytes, 1));
      if (error != cudaSuccess) return no_host_memory(error, bytes);
    }
    if (is_kept(bytes)) lent_.push_back({memory, bytes});
    return memory;
  }
  void release_host(void* memory) override {
    if (!memory) return;
    const OnGpuScope on(queue_.device);
    const std::lock_guard lock(host_mutex_);
    const auto at =
        std::find_if(lent_.begin(), lent_.end(), [&](const Block& b) { return b.memory == memory; });
    if (at != lent_.end()) {
      std::swap(spare_, *at);
      memory = at->memory;
      lent_.erase(at);
    }
    if (memory) cudaFreeHost(memory);
  }
  int64_t free_bytes() const override {
    size_t free = 0, total = 0;
    const OnGpuScope on(queue_.device);
    return cudaMemGetInfo(&free, &total) == cudaSuccess ? static_cast<int64_t>(free) : 0;
  }
  int64_t total_bytes() const override {
    size_t free = 0, total = 0;
    const OnGpuScope on(queue_.device);
    return cudaMemGetInfo(&free, &total) == cudaSuccess ? static_cast<int64_t>(total) : 0;
  }

  Stream stream() override { return {Backend::kCuda, &queue_}; }
  Result<Stream> wrap(void* native) override {
    const OnGpuScope on(queue_.device);
    SLUICE_TRY(check(on.error(), "wrap"));
    auto queue = std::make_unique<GroupQueue>();
    queue->stream = static_cast<cudaStream_t>(native);
    queue->device = queue_.device;
    queue->sms = queue_.sms;
    queue->dependent = queue_.dependent;
    queue->member = &member_;
    SLUICE_TRY(need_no_capture(queue->stream, "wrap"));
    SLUICE_TRY(check_device(queue->stream, "wrap"));
    // Allocating the counters must not invalidate a capture that another thread has begun on its own stream.
    const RelaxedCapture relaxed;
    auto grid_words = make_grid_words(queue_.stream);
    if (!grid_words.ok()) return grid_words.status();
    queue->grid_words = grid_words.value();
    const std::lock_guard lock(wrapped_mutex_);
    wrapped_.push_back(std::move(queue));
    return Stream{Backend::kCuda, wrapped_.back().get()};
  }
  Status retarget(Stream wrapped, void* native) override {
    const OnGpuScope on(queue_.device);
    SLUICE_TRY(check(on.error(), "retarget"));
    SLUICE_TRY(check_device(static_cast<cudaStream_t>(native), "retarget"));
    const std::lock_guard lock(wrapped_mutex_);
    const auto at = find_wrapped(wrapped);
    if (at == wrapped_.end())
      return invalid("cuda: retarget: wanted a stream that this device has wrapped, found another stream");
    (*at)->stream = static_cast<cudaStream_t>(native);
    return {};
  }
  void unwrap(Stream stream) override {
    const std::lock_guard lock(wrapped_mutex_);
    const auto at = find_wrapped(stream);
    if (at == wrapped_.end()) return;
    const OnGpuScope on(queue_.device);
    const RelaxedCapture relaxed;
    cudaFree((*at)->grid_words);
    wrapped_.erase(at);
  }

  Status copy(void* to, const void* from, size_t bytes, Stream stream) override {
    if (bytes == 0) return {};
    const OnGpuScope on(queue_.device);
    SLUICE_TRY(check(on.error(), "copy"));
    const cudaError_t error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, queue_of(stream).stream);
    if (error == cudaSuccess) return {};
    return fault(error, "copy of " + std::to_string(bytes) + " bytes", queue_of(stream));
  }

  Status wait(Stream stream) override {
    Queue& queue = queue_of(stream);
    const OnGpuScope on(queue_.device);
    SLUICE_TRY(check(on.error(), "wait"));
    SLUICE_TRY(need_no_capture(queue.stream, "wait"));  // waiting would invalidate the capture
    const cudaError_t error = cudaStreamSynchronize(queue.stream);
    if (error != cudaSuccess) return fault(error, "a fault on the GPU", queue);
    queue.done = queue.enqueued;
    return group_status(group_queue_of(stream));
  }

  Result<std::unique_ptr<Mark>> make_mark() override {
    const OnGpuScope on(queue_.device);
    SLUICE_TRY(check(on.error(), "make_mark"));
    auto mark = std::make_unique<CudaMark>();
    mark->device = queue_.device;
    SLUICE_TRY(check(cudaEventCreateWithFlags(&mark->event, cudaEventDisableTiming), "make_mark"));
    return std::unique_ptr<Mark>(std::move(mark));
  }
  Status place(Mark& mark, Stream stream) override {
    auto* mine = dynamic_cast<CudaMark*>(&mark);
    if (!mine) return invalid("cuda: the mark was made on another backend");
    const OnGpuScope on(queue_.device);
    SLUICE_TRY(check(on.error(), "place"));
    const Queue& queue = queue_of(stream);
    const cudaError_t error = cudaEventRecord(mine->event, queue.stream);
    if (error != cudaSuccess) return fault(error, "place", queue);
    mine->stream = stream;
    mine->enqueued = queue.enqueued;
    return {};
  }
  Status wait_for(const Mark& mark) override {
    const auto* mine = dynamic_cast<const CudaMark*>(&mark);
    if (!mine) return invalid("cuda: the mark was made on another backend");
    if (!mine->stream.native) return {};
    const OnGpuScope on(queue_.device);
    SLUICE_TRY(check(on.error(), "wait_for"));
    Queue& queue = queue_of(mine->stream);
    const cudaError_t error = cudaEventSynchronize(mine->event);
    if (error != cudaSuccess) return fault(error, "a fault on the GPU", queue);
    queue.done = std::max(queue.done, mine->enqueued);
    return group_status(group_queue_of(mine->stream));
  }
  Result<bool> passed(const Mark& mark) override {
    const auto* mine = dynamic_cast<const CudaMark*>(&mark);
    if (!mine) return invalid("cuda: the mark was made on another backend");
    if (!mine->stream.native) return true;
    const OnGpuScope on(queue_.device);
    SLUICE_TRY(check(on.error(), "passed"));
    const cudaError_t error = cudaEventQuery(mine->event);
    if (error == cudaErrorNotReady) return (void)cudaGetLastError(), false;
    if (error != cudaSuccess) return fault(error, "a fault on the GPU", queue_of(mine->stream));
    SLUICE_TRY(group_status(group_queue_of(mine->stream)));
    return true;
  }

  Result<std::unique_ptr<Recording>> record(Stream stream,
                                            const std::function<Status()>& enqueue_all) override {
    Queue& queue = queue_of(stream);
    if (queue.recording)
      return invalid(
          "cuda: record: wanted a stream that is not being recorded, found a recording in progress");
    auto out = std::make_unique<CudaRecording>();
    out->device = queue.device;
    const OnGpuScope on(queue.device);
    SLUICE_TRY(check(on.error(), "record"));
    SLUICE_TRY(need_no_capture(queue.stream, "record"));
    auto grid_words = make_grid_words(queue.stream);
    if (!grid_words.ok()) return grid_words.status();
    out->grid_words = grid_words.value();
    SLUICE_TRY(check(cudaStreamBeginCapture(queue.stream, cudaStreamCaptureModeThreadLocal), "record"));
    Status status;
    cudaGraph_t graph = nullptr;
    {
      struct Ending {  // ends the capture even if enqueue_all throws
        Queue& queue;
        uint32_t* grid_words;
        cudaGraph_t* graph;
        cudaError_t error = cudaSuccess;
        bool ended = false;
        void end() {
          if (ended) return;
          ended = true;
          queue.recording = nullptr;
          queue.grid_words = grid_words;
          error = cudaStreamEndCapture(queue.stream, graph);
        }
        ~Ending() { end(); }
      } ending{queue, queue.grid_words, &graph};
      queue.recording = &out->kernels;
      queue.grid_words = out->grid_words;
      status = enqueue_all();
      ending.end();
      if (status.ok()) status = check(ending.error, "record");
      if (!status.ok()) (void)cudaGetLastError();
    }
    if (status.ok()) status = check(cudaGraphInstantiate(&out->graph, graph, 0), "record");
    if (graph) cudaGraphDestroy(graph);
    if (!status.ok()) return status;
    SLUICE_TRY(check(cudaGraphUpload(out->graph, queue.stream), "record"));
    return std::unique_ptr<Recording>(std::move(out));
  }

  Status replay(const Recording& recording, Stream stream) override {
    const auto* mine = dynamic_cast<const CudaRecording*>(&recording);
    if (!mine) return invalid("cuda: the recording was made on another backend");
    Queue& queue = queue_of(stream);
    if (mine->device != queue.device)
      return invalid("cuda: wanted a recording of GPU " + std::to_string(queue.device) +
                     ", found a recording of GPU " + std::to_string(mine->device));
    const OnGpuScope on(queue.device);
    SLUICE_TRY(check(on.error(), "replay"));
    for (const std::string_view name : mine->kernels) queue.note(name);
    const cudaError_t error = cudaGraphLaunch(mine->graph, queue.stream);
    return error == cudaSuccess ? Status{} : fault(error, "replay", queue);
  }

 private:
  // Page-locked memory that is kept for the next request of the same size. Allocating
  // 32 MiB takes 10 ms, and a model's layers are loaded one after another.
  struct Block {
    void* memory = nullptr;
    size_t bytes = 0;
  };
  static bool is_kept(size_t bytes) { return bytes >= size_t{1} << 20 && bytes <= size_t{64} << 20; }
  static Status no_host_memory(cudaError_t error, size_t bytes) {
    (void)cudaGetLastError();
    if (error != cudaErrorMemoryAllocation)
      return check(error, "allocate_host " + std::to_string(bytes) + " bytes");
    return out_of_memory("cuda: wanted " + std::to_string(bytes) +
                         " bytes of page-locked host memory, which the system could not allocate");
  }

  std::vector<std::unique_ptr<GroupQueue>>::iterator find_wrapped(Stream stream) {
    return std::find_if(wrapped_.begin(), wrapped_.end(),
                        [&](const auto& queue) { return queue.get() == stream.native; });
  }

  // Ok if the caller's stream is on this GPU.
  Status check_device(cudaStream_t stream, const std::string& doing) const {
    // cudaStreamGetDevice() would invalidate a capture, so the device of a captured stream is not checked.
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(stream, &capture) != cudaSuccess || capture != cudaStreamCaptureStatusNone) {
      (void)cudaGetLastError();
      return {};
    }
    const bool any_gpu = !stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
    int device = queue_.device;
    if (!any_gpu && cudaStreamGetDevice(stream, &device) != cudaSuccess) {
      (void)cudaGetLastError();  // the driver is too old for cudaStreamGetDevice()
      return {};
    }
    if (device == queue_.device) return {};
    return invalid("cuda: " + doing + ": wanted a stream of GPU " + std::to_string(queue_.device) +
                   ", found a stream of GPU " + std::to_string(device));
  }

  static Status fault(cudaError_t error, const std::string& doing, const Queue& queue) {
    Status status = check(error, doing);
    status.message += "; kernels enqueued since the last wait: " + names_of(queue);
    return status;
  }

  DeviceInfo info_;
  Catalog built_;
  const Member* member_ = nullptr;  // set by the device's group
  GroupQueue queue_;
  std::mutex wrapped_mutex_;
  std::vector<std::unique_ptr<GroupQueue>> wrapped_;
  std::mutex host_mutex_;
  std::vector<Block> lent_;  // blocks in use that is_kept() will keep
  Block spare_;
};

}  // namespace

Result<std::unique_ptr<Device>> open_device(const Options& options) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver) {
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    const auto version = [](int v) { return std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10); };
    return unsupported(
        "cuda: wanted a driver for CUDA " + version(runtime) + ", found " +
        (driver ? "a driver for CUDA " + version(driver) : std::string("none (libcuda.so.1)")));
  }
  if (error != cudaSuccess && error != cudaErrorNoDevice) {
    Status status = check(error, "looking for GPUs");
    return unsupported(status.message);
  }
  if (options.index < 0 || options.index >= count)
    return unsupported("cuda: wanted GPU " + std::to_string(options.index) + ", found " +
                       (count ? std::to_string(count) + " (counted from 0)" : "no GPU"));
  cudaDeviceProp gpu{};
  SLUICE_TRY(check(cudaGetDeviceProperties(&gpu, options.index), "asking for the GPU's properties"));
  SLUICE_TRY(accept_capability(gpu.name, gpu.major, gpu.minor));
  auto device = std::make_unique<CudaDevice>(describe(gpu, options.index), options);
  SLUICE_TRY(device->start());
  options.log(LogLevel::kInfo, "device " + text(device->info()) + ", GPU " + std::to_string(options.index) +
                                   " " + gpu.name + ", dependent launches " +
                                   (options.dependent ? "on" : "off"));
  return std::unique_ptr<Device>(std::move(device));
}

}  // namespace sluice::cuda
