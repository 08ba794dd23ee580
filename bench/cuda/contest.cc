#include "cuda/contest.h"

#include <algorithm>
#include <cmath>

#include "backends/cuda/queue.h"
#include "cuda/kernels.h"
#include "cuda/memory.h"

namespace sluice::bench {
namespace {

// A pair of events around something on the stream.
class Stopwatch {
 public:
  Stopwatch() = default;
  ~Stopwatch() {
    if (start_) cudaEventDestroy(start_);
    if (end_) cudaEventDestroy(end_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  // Microseconds of one replay, the host's part of it hidden behind a delay.
  Status time(Device& device, const Recording& recording, double* us) {
    constexpr double kHostUs = 60;
    const Stream stream = device.stream();
    cudaStream_t native = cuda::queue_of(stream).stream;
    if (!start_) SLUICE_TRY(cuda::check(cudaEventCreate(&start_), "making an event"));
    if (!end_) SLUICE_TRY(cuda::check(cudaEventCreate(&end_), "making an event"));
    {
      const Dependent plain(stream, false);
      SLUICE_TRY(delay(kHostUs, stream));
    }
    SLUICE_TRY(cuda::check(cudaEventRecord(start_, native), "starting the clock"));
    SLUICE_TRY(device.replay(recording, stream));
    SLUICE_TRY(cuda::check(cudaEventRecord(end_, native), "stopping the clock"));
    SLUICE_TRY(device.wait(stream));
    float ms = 0;
    SLUICE_TRY(cuda::check(cudaEventElapsedTime(&ms, start_, end_), "reading the clock"));
    *us = 1e3 * ms;
    return {};
  }

 private:
  cudaEvent_t start_ = nullptr, end_ = nullptr;
};

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(std::lround(share * static_cast<double>(values.size() - 1)))];
}

struct Recorded {
  const Contender* contender = nullptr;
  std::unique_ptr<Recording> recording;
  std::vector<double> us = {};  // of one run
};

// Records a contender, if it computes what it should.
Status admit(Device& device, const Contest& contest, const Contender& contender, std::vector<Recorded>* out,
             std::vector<std::string>* complaints) {
  const Stream stream = device.stream();
  const std::string name = contest.op + " " + contest.model + " M=" + std::to_string(contest.tokens) +
                           (contest.note.empty() ? "" : " " + contest.note) + ": " + contender.impl;
  SLUICE_TRY(contest.poison());
  const Dependent dependent(stream, contender.dependent);
  if (const Status status = contender.enqueue(0); !status.ok()) {
    if (status.code == Code::kDevice)
      SLUICE_TRY(device.wait(stream));  // a refused launch leaves the device whole
    complaints->push_back(name + " left out: " + status.message);
    return {};
  }
  if (Status status = device.wait(stream); !status.ok()) {
    status.message = name + ": " + status.message;
    return status;
  }
  const Result<std::string> wrong = contest.verify(contender.who);
  if (!wrong.ok()) return wrong.status();
  if (!wrong.value().empty()) {
    complaints->push_back(name + " left out, wrong: " + wrong.value());
    return {};
  }
  auto recording = device.record(stream, [&]() -> Status {
    for (int64_t i = 0; i < contest.launches; ++i) SLUICE_TRY(contender.enqueue(i));
    return {};
  });
  if (!recording.ok()) {
    complaints->push_back(name + " left out, not recordable: " + recording.status().message);
    return {};
  }
  out->push_back({&contender, std::move(recording).value()});
  return {};
}

}  // namespace

Dependent::Dependent(Stream stream, bool on) : flag_(&cuda::queue_of(stream).dependent), before_(*flag_) {
  *flag_ = on;
}
Dependent::~Dependent() { *flag_ = before_; }

Status measure(Device& device, const Contest& contest, int replays, std::vector<Outcome>* outcomes,
               std::vector<std::string>* complaints) {
  std::vector<Recorded> recorded;
  for (const Contender& c : contest.contenders) SLUICE_TRY(admit(device, contest, c, &recorded, complaints));
  Stopwatch stopwatch;
  constexpr int kWarm = 2;
  for (int round = -kWarm; round < replays; ++round)
    for (Recorded& r : recorded) {
      double us = 0;
      SLUICE_TRY(stopwatch.time(device, *r.recording, &us));
      if (round >= 0) r.us.push_back(us / static_cast<double>(contest.launches));
    }
  for (const Recorded& r : recorded)
    outcomes->push_back({r.contender->who,
                         {.suite = contest.suite,
                          .op = contest.op,
                          .model = contest.model,
                          .tokens = contest.tokens,
                          .impl = r.contender->impl,
                          .version = r.contender->version,
                          .median_us = quantile(r.us, 0.5),
                          .p10_us = quantile(r.us, 0.1),
                          .p90_us = quantile(r.us, 0.9),
                          .bytes = contest.bytes,
                          .flops = contest.flops,
                          .note = contest.note}});
  return {};
}

Result<Ceilings> measure_ceilings(Device& device) {
  Ceilings out;
  Stopwatch stopwatch;
  const Stream stream = device.stream();
  const auto median_us = [&](int64_t launches, const std::function<Status()>& enqueue, double* us) -> Status {
    auto recording = device.record(stream, [&]() -> Status {
      for (int64_t i = 0; i < launches; ++i) SLUICE_TRY(enqueue());
      return {};
    });
    if (!recording.ok()) return recording.status();
    std::vector<double> all(15);
    for (double& one : all) SLUICE_TRY(stopwatch.time(device, *recording.value(), &one));
    *us = quantile(all, 0.5) / static_cast<double>(launches);
    return {};
  };
  constexpr int64_t kLaunches = 400;
  for (const bool on : {false, true}) {
    const Dependent dependent(stream, on);
    SLUICE_TRY(median_us(
        kLaunches, [&] { return empty_kernel(stream); }, on ? &out.dependent_launch_us : &out.launch_us));
  }
  constexpr int64_t kBytes = int64_t{4} << 30;
  Memory memory(device);
  Tensor words, sums;
  SLUICE_TRY(memory.random(DType::kF32, {kBytes / 4}, 1, &words));
  SLUICE_TRY(memory.tensor(DType::kI32, {kReadBlocks}, &sums));
  double us = 0;
  SLUICE_TRY(median_us(
      1, [&] { return read_all(words.data, kBytes, sums.as<uint32_t>(), stream); }, &us));
  out.read_bytes_per_us = static_cast<double>(kBytes) / us;
  return out;
}

}  // namespace sluice::bench
