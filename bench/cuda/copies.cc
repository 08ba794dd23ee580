#include "cuda/copies.h"

#include <cstring>

#include "backends/cuda/queue.h"

namespace sluice::bench {

Copies::~Copies() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
  if (stream_) cudaStreamSynchronize(stream_);
  for (cudaEvent_t event : done_)
    if (event) cudaEventDestroy(event);
  if (stream_) cudaStreamDestroy(stream_);
  if (host_) cudaFreeHost(host_);
  if (device_) cudaFree(device_);
}

Status Copies::start() {
  SLUICE_TRY(cuda::check(cudaMallocHost(&host_, kBytes), "pinned memory for copies"));
  SLUICE_TRY(cuda::check(cudaMalloc(&device_, kBytes), "memory for copies"));
  SLUICE_TRY(cuda::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream for copies"));
  for (cudaEvent_t& event : done_)
    SLUICE_TRY(cuda::check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "an event for copies"));
  std::memset(host_, 0x5a, kBytes);
  int gpu = 0;
  SLUICE_TRY(cuda::check(cudaGetDevice(&gpu), "copies"));
  thread_ = WorkerThread([this, gpu] {
    cudaSetDevice(gpu);
    work();
  });
  while (copied_ == 0) std::this_thread::yield();
  return {};
}

// Keeps two copies in flight. An error ends the loop; the concurrent kernels then fail too and report it.
void Copies::work() {
  for (int64_t i = 0; !stop_; ++i) {
    cudaEvent_t done = done_[i % 2];
    const bool ok = (i < 2 || cudaEventSynchronize(done) == cudaSuccess) &&
                    cudaMemcpyAsync(device_, host_, kBytes, cudaMemcpyHostToDevice, stream_) == cudaSuccess &&
                    cudaEventRecord(done, stream_) == cudaSuccess;
    ++copied_;
    if (!ok) return;
  }
}

}  // namespace sluice::bench
