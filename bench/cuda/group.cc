// The sum over ranks with the residual add and the norm, in a captured chain on every GPU of this machine. As in a decoder
// each launch depends on the previous one: it sums the rows that the previous launch normalized.
#include <cuda_runtime.h>

#include <algorithm>

#include "backends/cuda/device.h"
#include "backends/cuda/queue.h"
#include "cuda/commit.h"
#include "cuda/memory.h"
#include "cuda/suites.h"
#include "dispatch/plan.h"

namespace sluice::bench {
namespace {

constexpr int kChain = 200, kReplays = 3;  // launches per captured graph; graphs that are timed together

// One rank: its device and the chain recorded on it.
class Rank {
 public:
  explicit Rank(Device& device) : memory_(device) {}
  Status make(const AllReduceNorm::Problem& p, const std::string& force) {
    plan_ = {};
    Device& device = memory_.device();
    auto plan = make_plan<AllReduceNorm>(device, p, {.force = force});
    if (!plan.ok()) return plan.status();
    kernel_ = plan.value().choice();
    if (!a_.present() || a_.shape != std::array<int64_t, kMaxRank>{p.tokens, p.hidden}) {
      SLUICE_TRY(memory_.random(kB, {p.tokens, p.hidden}, 1, &a_));
      SLUICE_TRY(memory_.random(kB, {p.tokens, p.hidden}, 1, &b_));
      SLUICE_TRY(memory_.random(kB, {p.tokens, p.hidden}, 1, &stream_));
      SLUICE_TRY(memory_.random(kB, {p.hidden}, 1, &weight_));
    }
    auto made = device.record(device.stream(), [&]() -> Status {
      for (int i = 0; i < kChain; ++i)
        SLUICE_TRY(plan.value().run(
            {.x = i % 2 ? b_ : a_, .stream = stream_, .weight = weight_, .y = i % 2 ? a_ : b_}, {},
            device.stream()));
      return {};
    });
    if (!made.ok()) return made.status();
    plan_ = std::move(made).value();
    return {};
  }
  Status replay() { return memory_.device().replay(*plan_, memory_.stream()); }
  Status wait() { return memory_.device().wait(memory_.stream()); }
  cudaStream_t stream() { return cuda::queue_of(memory_.stream()).stream; }
  const std::string& kernel() const { return kernel_; }

 private:
  Memory memory_;
  Tensor a_, b_, stream_, weight_;
  std::unique_ptr<Recording> plan_;
  std::string kernel_;
};

struct Event {
  Event() { cudaEventCreate(&event); }
  ~Event() { cudaEventDestroy(event); }
  cudaEvent_t event = nullptr;
};

// Microseconds of one launch, by the clock of rank 0.
Status time_chain(std::vector<std::unique_ptr<Rank>>& ranks, int replays, std::vector<double>* us) {
  Event begin, end;
  for (int i = -1; i < replays; ++i) {
    const cudaStream_t first = ranks.front()->stream();
    // aligns the ranks, because each waits for the others
    for (auto& rank : ranks) SLUICE_TRY(rank->replay());
    if (cudaEventRecord(begin.event, first) != cudaSuccess)
      return {Code::kDevice, "group: could not time a chain"};
    for (int k = 0; k < kReplays; ++k)
      for (auto& rank : ranks) SLUICE_TRY(rank->replay());
    if (cudaEventRecord(end.event, first) != cudaSuccess)
      return {Code::kDevice, "group: could not time a chain"};
    for (auto& rank : ranks) SLUICE_TRY(rank->wait());
    float ms = 0;
    if (cudaEventElapsedTime(&ms, begin.event, end.event) != cudaSuccess)
      return {Code::kDevice, "group: could not time a chain"};
    if (i >= 0) us->push_back(1e3 * static_cast<double>(ms) / (kChain * kReplays));
  }
  std::sort(us->begin(), us->end());
  return {};
}

}  // namespace

Status Bench::group() {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus < 2)
    return report_({}, {"group skipped: wanted 2 GPUs or more, found " + std::to_string(gpus)});
  std::vector<std::unique_ptr<Device>> owned;
  std::vector<Device*> devices = {&device_};
  for (int gpu = 1; gpu < std::min(gpus, static_cast<int>(AllReduceNorm::kRanksMax)); ++gpu) {
    auto opened = cuda::open_device({.index = gpu});
    if (!opened.ok()) return opened.status();
    owned.push_back(std::move(opened).value());
    devices.push_back(owned.back().get());
  }
  auto group = cuda::make_group(devices, {});
  if (!group.ok()) return group.status();
  const std::vector<int64_t> counts =
      options_.tokens.empty() ? std::vector<int64_t>{1, 4, 16, 64, 128, 256, 1024, 8192} : options_.tokens;
  const std::string kernel = "cuda.all_reduce_norm.words_sm90:";
  for (const int64_t hidden : {int64_t{2880}, int64_t{2048}}) {
    const std::string model = std::to_string(hidden) + "x" + std::to_string(devices.size());
    if (!wants(model)) continue;
    for (const int64_t tokens : counts) {
      if (over(model, tokens)) continue;
      const AllReduceNorm::Problem p{.tokens = tokens, .hidden = hidden, .ranks = std::ssize(devices)};
      std::vector<std::unique_ptr<Rank>> ranks;
      for (Device* device : devices) ranks.push_back(std::make_unique<Rank>(*device));
      std::vector<Outcome> outcomes;
      const auto add = [&](const char* impl, const std::string& force, bool alone) -> Status {
        AllReduceNorm::Problem problem = p;
        if (alone) problem.ranks = 1;
        for (auto& rank : ranks) SLUICE_TRY(rank->make(problem, force));
        std::vector<double> us;
        SLUICE_TRY(time_chain(ranks, options_.replays, &us));
        const auto at = [&](size_t tenths) { return us[(us.size() - 1) * tenths / 10]; };
        outcomes.push_back({.who = *impl ? Who::kSluice : Who::kCandidate,
                            .row = {.suite = "group",
                                    .op = "all_reduce_norm",
                                    .model = model,
                                    .tokens = tokens,
                                    .impl = *impl ? impl : ranks.front()->kernel(),
                                    .version = commit(),
                                    .median_us = at(5),
                                    .p10_us = at(1),
                                    .p90_us = at(9),
                                    .bytes = AllReduceNorm::bytes(p),
                                    .flops = AllReduceNorm::flops(p),
                                    .note = {}}});
        return {};
      };
      SLUICE_TRY(add("sluice", "", false));
      SLUICE_TRY(add("sluice-one-rank", "", true));
      if (options_.candidates)
        for (const char* way : {"once", "twice"}) SLUICE_TRY(add("", kernel + way, false));
      SLUICE_TRY(report_(outcomes, {}));
    }
  }
  return {};
}

}  // namespace sluice::bench
