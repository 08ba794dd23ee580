// The gate's GEMM, in plain launches and in a chain of dependent launches, compared with baselines.
#include <algorithm>

#include "backends/cuda/queue.h"
#include "cuda/ours.h"
#include "cuda/suites.h"
#include "ops/router_gemm.h"

namespace sluice::bench {
namespace {

constexpr int64_t kSmall = 512;  // up to this many tokens the fastest baselines write bf16 only
constexpr GateShape kGateShapes[] = {
    {2880, 32, true, kB},           {2880, 128, true, kB},          {4096, 256, false, kF},
    {7168, 256, false, kF},         {7168, 384, false, kF},         {2688, 128, false, kF},
    {4096, 512, false, kF},         {5120, 384, false, kF},         {4096, 256, false, kB, kSmall},
    {7168, 256, false, kB, kSmall}, {7168, 384, false, kB, kSmall}, {2688, 128, false, kB, kSmall},
    {4096, 512, false, kB, kSmall}, {5120, 384, false, kB, kSmall}, {3072, 256, false, kF, 16384, kF}};

sluice_peer_router peer_args(const RouterGemm::Args& a, const GateShape& shape, bool dependent) {
  return {.tokens = a.y.shape[0],
          .experts = shape.experts,
          .hidden = shape.hidden,
          .x = a.x.data,
          .w = a.w.data,
          .bias = a.bias.data,
          .y = a.y.data,
          .y_is_f32 = shape.logits() == DType::kF32,
          .dependent = dependent,
          .w_is_f32 = shape.w == DType::kF32,
          .residual = nullptr};
}

Status add_peers(const Peers& peers, const Gate& gate, Memory& memory, bool dependent, Contest* contest) {
  const Stream stream = memory.stream();
  const auto args = [&gate, tokens = contest->tokens, dependent](int64_t i) {
    return peer_args(gate.args(tokens, i), gate.shape(), dependent);
  };
  for (const sluice_peer* peer : peers.all()) {
    const sluice_peer_router first = args(0);
    if (!peer->router_supports || peer->router_supports(&first)) continue;
    void* scratch = nullptr;
    const size_t bytes = peer->router_scratch_bytes ? peer->router_scratch_bytes(&first) : 0;
    if (bytes > 0) SLUICE_TRY(memory.bytes(bytes, &scratch));
    void* prepared = peer->router_prepare ? peer->router_prepare(&first, scratch) : nullptr;
    const auto enqueue = [peer, scratch, prepared, args, stream](int64_t i) -> Status {
      const sluice_peer_router a = args(i);
      const int error = peer->router_enqueue(&a, scratch, prepared, cuda::queue_of(stream).stream);
      return error == 0 ? Status{}
                        : unsupported(std::string(peer->name) + ": error " + std::to_string(error));
    };
    contest->contenders.push_back(
        {Who::kPeer, csv_word(peer->name), csv_word(peer->version), dependent, enqueue});
  }
  return {};
}

}  // namespace

Status Bench::router() {
  auto left = std::count_if(std::begin(kGateShapes), std::end(kGateShapes),
                            [&](const GateShape& s) { return wants(s.model()); });
  for (const GateShape& shape : kGateShapes) {
    if (!wants(shape.model())) continue;
    constexpr int64_t kFused = 2;  // shares of the time kept for the suite `fused`; each shape has one
    share(kFused + left--);
    Gate gate(device_, shape, options_.cold_bytes);
    SLUICE_TRY(gate.make(tokens_max()));
    for (const int64_t tokens : this->tokens()) {
      if (tokens > shape.tokens_max || over(shape.model(), tokens)) continue;
      for (const bool dependent : {false, true}) {
        const RouterGemm::Problem problem = shape.problem(tokens);
        const RouterGemm::Args first = gate.args(tokens, 0);
        Memory memory(device_);  // for workspaces
        Contest contest{.suite = "router",
                        .op = dependent ? "router_gemm_pdl" : "router_gemm",
                        .model = shape.model(),
                        .note = shape.note(),
                        .tokens = tokens,
                        .bytes = RouterGemm::bytes(problem),
                        .flops = RouterGemm::flops(problem)};
        contest.launches = launches_for(shape.weight_bytes(), contest.bytes, contest.flops);
        contest.poison = [&] { return poison(first.y, memory.stream()); };
        contest.verify = [&](Who who) { return gate.check(first.x, first.y, who); };
        std::vector<std::string> complaints;
        SLUICE_TRY(add_ours<RouterGemm>(
            memory, problem, [&gate, tokens](int64_t i) { return gate.args(tokens, i); }, dependent, &contest,
            &complaints));
        SLUICE_TRY(add_peers(peers_, gate, memory, dependent, &contest));
        SLUICE_TRY(hold(contest, std::move(complaints)));
      }
    }
  }
  return {};
}

}  // namespace sluice::bench
