#include "cuda/contest.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "backends/cuda/queue.h"
#include "cuda/kernels.h"
#include "cuda/memory.h"

namespace sluice::bench {
namespace {

// A pair of events around work on the stream.
class Stopwatch {
 public:
  Stopwatch() = default;
  ~Stopwatch() {
    if (start_) cudaEventDestroy(start_);
    if (end_) cudaEventDestroy(end_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  // Microseconds of one replay. A delay kernel hides the host's launch overhead.
  Status time(Device& device, const Recording& recording, double* us) {
    constexpr double kHostUs = 60;
    const Stream stream = device.stream();
    cudaStream_t native = cuda::queue_of(stream).stream;
    if (!start_) SLUICE_TRY(cuda::check(cudaEventCreate(&start_), "creating an event"));
    if (!end_) SLUICE_TRY(cuda::check(cudaEventCreate(&end_), "creating an event"));
    {
      const Dependent plain(stream, false);
      SLUICE_TRY(delay(kHostUs, stream));
    }
    SLUICE_TRY(cuda::check(cudaEventRecord(start_, native), "recording the start event"));
    SLUICE_TRY(device.replay(recording, stream));
    SLUICE_TRY(cuda::check(cudaEventRecord(end_, native), "recording the end event"));
    SLUICE_TRY(device.wait(stream));
    float ms = 0;
    SLUICE_TRY(cuda::check(cudaEventElapsedTime(&ms, start_, end_), "reading the elapsed time"));
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
  std::unique_ptr<Recording> recording = nullptr;
  int64_t launches = 0;
  std::vector<double> us = {};  // per run
};

std::string name_of(const Contest& contest, const Contender& contender) {
  return contest.op + " " + contest.model + " M=" + std::to_string(contest.tokens) +
         (contest.note.empty() ? "" : " " + contest.note) + ": " + contender.impl;
}

Row row_of(const Contest& contest, const Contender& contender, const std::vector<double>& us,
           const std::string& note) {
  return {.suite = contest.suite,
          .op = contest.op,
          .model = contest.model,
          .tokens = contest.tokens,
          .impl = contender.impl,
          .version = contender.version,
          .median_us = quantile(us, 0.5),
          .p10_us = quantile(us, 0.1),
          .p90_us = quantile(us, 0.9),
          .bytes = contest.bytes,
          .flops = contest.flops,
          .note = note};
}

// Captures a contender if its results are correct.
Status admit(Device& device, const Contest& contest, const Contender& contender, int64_t launches,
             std::vector<Recorded>* out, std::vector<std::string>* complaints) {
  const Stream stream = device.stream();
  const std::string name = name_of(contest, contender);
  SLUICE_TRY(contest.poison());
  const Dependent dependent(stream, contender.dependent);
  if (const Status status = contender.enqueue(0); !status.ok()) {
    if (status.code == Code::kDevice)
      SLUICE_TRY(device.wait(
          stream));  // returns an error after a fault of the device, but not after a rejected launch
    complaints->push_back(name + " skipped: " + status.message);
    return {};
  }
  if (Status status = device.wait(stream); !status.ok()) {
    status.message = name + ": " + status.message;
    return status;
  }
  const Result<std::string> wrong = contest.verify(contender.who);
  if (!wrong.ok()) return wrong.status();
  if (!wrong.value().empty()) {
    complaints->push_back(name + " skipped, wrong result: " + wrong.value());
    return {};
  }
  auto recording = device.record(stream, [&]() -> Status {
    for (int64_t i = 0; i < launches; ++i) SLUICE_TRY(contender.enqueue(i));
    return {};
  });
  if (!recording.ok()) {
    complaints->push_back(name + " skipped, cannot be captured: " + recording.status().message);
    return {};
  }
  out->push_back({&contender, std::move(recording).value(), launches});
  return {};
}

// Captures the contender again with as many runs as fit into `us`, at most kRunsMax.
Status fit(Device& device, Stopwatch& stopwatch, double us, Recorded* r) {
  constexpr int kTries = 2;  // the first try warms up
  constexpr double kRunsMax = 96;
  double took = 0;
  for (int i = 0; i < kTries; ++i) SLUICE_TRY(stopwatch.time(device, *r->recording, &took));
  const double runs = us * static_cast<double>(r->launches) / took;
  const int64_t launches = static_cast<int64_t>(std::clamp(runs, 1.0, kRunsMax));
  if (launches == r->launches) return {};
  const Stream stream = device.stream();
  const Dependent dependent(stream, r->contender->dependent);
  auto recording = device.record(stream, [&]() -> Status {
    for (int64_t i = 0; i < launches; ++i) SLUICE_TRY(r->contender->enqueue(i));
    return {};
  });
  if (!recording.ok()) return recording.status();
  r->recording = std::move(recording).value();
  r->launches = launches;
  return {};
}

std::string note_of(const std::string& pace, const Contest& contest) {
  return contest.note.empty() ? pace : pace + " " + contest.note;
}

void sleep_us(double us) { std::this_thread::sleep_for(std::chrono::microseconds(static_cast<int64_t>(us))); }

// Successive events on the stream, and the times between adjacent events.
class Marks {
 public:
  Marks() = default;
  ~Marks() {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  Marks(const Marks&) = delete;
  Marks& operator=(const Marks&) = delete;
  Status set(Stream stream) {
    events_.push_back(nullptr);
    SLUICE_TRY(cuda::check(cudaEventCreate(&events_.back()), "creating an event"));
    return cuda::check(cudaEventRecord(events_.back(), cuda::queue_of(stream).stream), "recording an event");
  }
  Status wait_for(size_t i) const {
    return cuda::check(cudaEventSynchronize(events_[i]), "waiting for an event");
  }
  Status between(size_t i, double* us) const {
    float ms = 0;
    SLUICE_TRY(
        cuda::check(cudaEventElapsedTime(&ms, events_[i], events_[i + 1]), "reading the elapsed time"));
    *us = 1e3 * ms;
    return {};
  }

 private:
  std::vector<cudaEvent_t> events_;
};

// Replays for `us` without a pause. Returns times per run in the second half, with power and clock.
Status sustain(Device& device, const Recorded& r, double us, double run_us, Power& power,
               std::vector<double>* out, Power::Mean* mean) {
  const Stream stream = device.stream();
  const double replay_us = run_us * static_cast<double>(r.launches);
  constexpr size_t kFewest = 8, kAhead = 4;  // fewest replays; replays enqueued ahead of the running one
  const size_t count = std::max(kFewest, static_cast<size_t>(us / replay_us) + 1), half = count / 2;
  Marks marks;
  SLUICE_TRY(marks.set(stream));
  Power::Clock::time_point from = {};
  for (size_t i = 0; i < count; ++i) {
    SLUICE_TRY(device.replay(*r.recording, stream));
    SLUICE_TRY(marks.set(stream));
    if (i >= kAhead) SLUICE_TRY(marks.wait_for(i - kAhead));
    if (i == half + kAhead) from = Power::Clock::now();
  }
  SLUICE_TRY(device.wait(stream));
  if (from != Power::Clock::time_point{}) *mean = power.mean(from, Power::Clock::now());
  for (size_t i = half; i < count; ++i) {
    double one = 0;
    SLUICE_TRY(marks.between(i, &one));
    out->push_back(one / static_cast<double>(r.launches));
  }
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
  for (const Contender& c : contest.contenders)
    SLUICE_TRY(admit(device, contest, c, contest.launches, &recorded, complaints));
  Stopwatch stopwatch;
  constexpr int kWarm = 2;
  for (int round = -kWarm; round < replays; ++round)
    for (Recorded& r : recorded) {
      double us = 0;
      SLUICE_TRY(stopwatch.time(device, *r.recording, &us));
      if (round >= 0) r.us.push_back(us / static_cast<double>(contest.launches));
    }
  for (const Recorded& r : recorded)
    outcomes->push_back({r.contender->who, row_of(contest, *r.contender, r.us, contest.note)});
  return {};
}

Status measure_paced(Device& device, const Contest& contest, const Pace& pace, int replays, Power& power,
                     std::vector<Outcome>* outcomes, std::vector<std::string>* complaints) {
  constexpr int64_t kTrial = 3;  // runs in the first capture, which estimates the time of one run
  std::vector<Recorded> recorded;
  Stopwatch stopwatch;
  for (const Contender& c : contest.contenders)
    SLUICE_TRY(admit(device, contest, c, kTrial, &recorded, complaints));
  for (Recorded& r : recorded) SLUICE_TRY(fit(device, stopwatch, 0.9 * pace.burst_us, &r));
  std::vector<double> run_us(recorded.size());
  std::vector<Power::Mean> means(recorded.size());
  constexpr int kWarm = 1;
  for (int round = -kWarm; round < replays; ++round)
    for (size_t i = 0; i < recorded.size(); ++i) {
      Recorded& r = recorded[i];
      if (pace.burst) sleep_us(pace.pause_us);
      const auto from = Power::Clock::now();
      double us = 0;
      SLUICE_TRY(stopwatch.time(device, *r.recording, &us));
      const Power::Mean mean = power.mean(from, Power::Clock::now());
      run_us[i] = us / static_cast<double>(r.launches);
      if (round < 0) continue;
      r.us.push_back(run_us[i]);
      means[i].watts += mean.watts * static_cast<double>(mean.samples);
      means[i].sm_mhz += mean.sm_mhz * static_cast<double>(mean.samples);
      means[i].samples += mean.samples;
    }
  for (size_t i = 0; pace.burst && i < recorded.size(); ++i) {
    const Recorded& r = recorded[i];
    if (quantile(r.us, 0.5) * static_cast<double>(r.launches) > pace.burst_us) {
      complaints->push_back(name_of(contest, *r.contender) + ": no burst row, because one run takes " +
                            std::to_string(quantile(r.us, 0.5)) + " us");
      continue;
    }
    Power::Mean mean = means[i];
    if (mean.samples > 0)
      mean.watts /= static_cast<double>(mean.samples), mean.sm_mhz /= static_cast<double>(mean.samples);
    outcomes->push_back(
        {r.contender->who, row_of(contest, *r.contender, r.us, note_of("burst", contest)), mean});
  }
  for (size_t i = 0; pace.sustained && i < recorded.size(); ++i) {
    // A GPU that exceeded its power limit then lowers its clock for equally long, so rest before the next contender.
    sleep_us(pace.rest_us);
    std::vector<double> us;
    Power::Mean mean;
    SLUICE_TRY(sustain(device, recorded[i], pace.sustained_us, run_us[i], power, &us, &mean));
    outcomes->push_back({recorded[i].contender->who,
                         row_of(contest, *recorded[i].contender, us, note_of("sustained", contest)), mean});
  }
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
