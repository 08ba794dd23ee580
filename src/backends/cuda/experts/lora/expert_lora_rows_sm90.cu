// LoRA of experts for rows with few others of their (adapter, expert) pair, as in a decode step: a CTA, or a cluster of up to 8, computes
// one row in one launch.
//
// Each CTA has a part of the columns and a part of the features. Bulk copies bring its parts of x, A and B to shared memory, all of them at
// once, before the kernel waits for z. The warps compute A x by scalar FMAs, the CTAs of a cluster add up their sums, and each thread
// multiplies rows of B by A x. Bias, activation and the store to y follow.
//
// Wins    up to some 64 tokens of rank 16 or less, whose rows nearly all have a pair of their own.
// Loses   to mma_sm90 for more rows, several of which share a pair, because this kernel reads A and B once for each row; and for larger
//         ranks, where a CTA fills an SM and nothing hides the latency of its first bytes.
// Limits  see supports() and configs() below. The split of a sum depends on the configuration, so the kernel is not batch-invariant.
// Bytes   reads A and B of a pair once per row, from L2 if another row has read them before.
// Source  original; the contract is ops/expert_lora.h, the design is that of docs/lab/cuda-lora.md.
#include <algorithm>
#include <cmath>
#include <utility>

#include "backends/cuda/card.h"
#include "backends/cuda/experts/lora/lora_tile.h"
#include "ops/expert_lora.h"

namespace sluice::cuda {
namespace {

constexpr int kBlocks[] = {1, 2, 4, 8};  // CTAs per cluster
constexpr int64_t kSharedMax = 227 << 10, kSharedPerSm = 228 << 10, kReserved = 1 << 10;
constexpr int64_t kEach = 8;  // columns and features of a CTA are multiples of this: 16 bytes

// The part of a CTA, and offsets in its shared memory. At offset 0 are two mbarriers.
struct Slice {
  int columns = 0, features = 0;
  int x = 0, a = 0, b = 0, part = 0, inner = 0, delta = 0, bytes = 0;
};
Slice slice_of(const ExpertLora::Problem& p, int blocks) {
  const auto part = [&](int64_t all) { return round_up((all + blocks - 1) / blocks, kEach); };
  const int64_t columns = part(p.width), features = part(p.features), inner = ExpertLora::inner(p),
                rows = (is_gated(p.act) ? 2 : 1) * features;
  int64_t at = 16;
  const auto place = [&](int64_t bytes) {
    return static_cast<int>(std::exchange(at, at + round_up(bytes, int64_t{16})));
  };
  Slice s;
  s.columns = static_cast<int>(columns), s.features = static_cast<int>(features);
  s.x = place(2 * columns), s.a = place(2 * inner * columns), s.b = place(2 * rows * p.rank);
  s.part = place(4 * inner), s.inner = place(4 * inner), s.delta = place(4 * rows);
  s.bytes = static_cast<int>(std::min<int64_t>(at, INT32_MAX));
  return s;
}

Refusal supports(const ExpertLora::Problem& p, const DeviceInfo& d) {
  return lora_refusal(p, d, "bulk copies of bf16");
}

// Fitted to gpt-oss-20b and 120b and Qwen3-30B-A3B, ranks 16 and 64, 1 to 1024 tokens (expert_lora_candidates.csv), with an error of 13% (RMS).
struct Constants {
  double launch_us = 0.48;
  double start_us = 3.5;       // of a CTA: finding its row, and the first bytes
  double cluster_us = 0.76;    // the sums over the cluster, if nothing hides them
  double alone_per_us = 56e3;  // bytes that an SM reads per us while most SMs are idle
  double per_us = 27.9e3;      // and while none is
  double gated = 1.07;         // time per byte of a gated product
  int resident = 5;            // CTAs of an SM, by their registers
};
constexpr Constants kCost;

// The SMs on which clusters of this size fit: a cluster is inside one of the GPU's parts of 16 or 18 SMs.
double sms_for(const DeviceInfo& d, int blocks) {
  return d.cores * (blocks == 8 ? 0.91 : blocks == 4 ? 0.97 : 1);
}

double config_us(const ExpertLora::Problem& p, const DeviceInfo& d, int blocks) {
  const Slice s = slice_of(p, blocks);
  const double resident =
      std::clamp<double>(static_cast<double>(kSharedPerSm / (s.bytes + kReserved)), 1, kCost.resident);
  const double sms = sms_for(d, blocks), ctas = std::max(1.0, ExpertLora::expected_rows(p)) * blocks;
  const double bytes = s.bytes * (is_gated(p.act) ? kCost.gated : 1);
  const auto round_us = [&](double of_an_sm) { return kCost.start_us + of_an_sm * bytes / kCost.per_us; };
  const double full = std::floor(ctas / (resident * sms)), rest = ctas - full * resident * sms;
  const bool alone = full == 0 && rest <= sms / 2;
  const double time = alone
                          ? kCost.start_us + bytes / kCost.alone_per_us + (blocks > 1 ? kCost.cluster_us : 0)
                          : full * round_us(resident) + (rest > 0 ? round_us(std::ceil(rest / sms)) : 0);
  return kCost.launch_us + std::max(time, ExpertLora::bytes(p) / d.mem_bytes_per_us);
}

std::vector<Config> configs(const ExpertLora::Problem& p, const DeviceInfo& d) {
  std::vector<Config> out;
  for (const int blocks : kBlocks) {
    Config config{.name = "1x" + std::to_string(blocks),
                  .cost_us = config_us(p, d, blocks),
                  .launches = {{.value = {blocks}}}};
    const int64_t bytes = slice_of(p, blocks).bytes;
    config.refusal.need(bytes <= kSharedMax, "a CTA's parts of A and B within 227 KiB of shared memory",
                        "bytes", bytes);
    out.push_back(std::move(config));
  }
  return out;
}

std::string launch_text(const ExpertLora::Problem&, const KernelLaunch& launch) {
  return "one row, its columns and features split among " + std::to_string(launch.value[0]) + " CTAs";
}

struct Launcher {
  static Status enqueue(const ExpertLora::Problem&, std::span<const KernelLaunch>, const ExpertLora::Args&,
                        Workspace, Stream);
};

}  // namespace

extern const Candidate<ExpertLora> expert_lora_rows_sm90 = {
    .name = "cuda.expert_lora.rows_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .configs = configs,
    .enqueue_config = enqueue_config_of<ExpertLora, Launcher>(),
    .launch_text = launch_text,
    .alignment_bytes = 16,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/experts/lora/lora_rows_kernel.cuh"
#include "backends/cuda/launch.h"

namespace sluice::cuda {
namespace {

using namespace lora_mma;

Status Launcher::enqueue(const ExpertLora::Problem& p, std::span<const KernelLaunch> launches,
                         const ExpertLora::Args& a, Workspace, Stream stream) {
  if (p.rows == 0) return {};
  const int blocks = launches[0].value[0];
  const Slice s = slice_of(p, blocks);
  RowParameters parameters;
  static_cast<MmaParameters&>(parameters) = mma_parameters(p, a);
  parameters.blocks = blocks;
  parameters.columns = s.columns, parameters.slice = s.features;
  parameters.at = {s.x, s.a, s.b, s.part, s.inner, s.delta};
  const auto kernel = is_gated(p.act) ? expert_lora_rows<true> : expert_lora_rows<false>;
  const Launch how{.grid = {static_cast<unsigned>(p.rows * blocks), 1, 1},
                   .block = {kLoraThreads, 1, 1},
                   .shared_bytes = static_cast<size_t>(s.bytes),
                   .cluster = {static_cast<unsigned>(blocks), 1, 1}};
  return launch(expert_lora_rows_sm90.name, kernel, how, stream, parameters);
}

}  // namespace

}  // namespace sluice::cuda
#endif
