// Routing: from logits to all inputs of the expert GEMMs.
#include <algorithm>

#include "backends/cuda/queue.h"
#include "cuda/commit.h"
#include "cuda/ours.h"
#include "cuda/routes.h"
#include "cuda/suites.h"

namespace sluice::bench {
namespace {

struct Shape {
  const char* model;
  RouteTopk::Problem route;
};

const Shape kRoutingShapes[] = {
    {"256x8-deepseek_v3",
     {.experts = 256,
      .top_k = 8,
      .method = RoutingMethod::kDeepSeekV3,
      .bias = true,
      .groups = 8,
      .topk_groups = 4,
      .scale = 2.5}},
    {"128x4-renormalize", {.experts = 128, .top_k = 4, .method = RoutingMethod::kRenormalize}},
    {"256x6-sqrt_softplus",
     {.experts = 256, .top_k = 6, .method = RoutingMethod::kSqrtSoftplus, .bias = true, .scale = 1.5}},
    {"384x6-sqrt_softplus",
     {.experts = 384, .top_k = 6, .method = RoutingMethod::kSqrtSoftplus, .bias = true, .scale = 1.5}},
};

int32_t peer_method(RoutingMethod method) {
  if (method == RoutingMethod::kDeepSeekV3) return SLUICE_PEER_DEEPSEEK_V3;
  if (method == RoutingMethod::kSqrtSoftplus) return SLUICE_PEER_SQRT_SOFTPLUS;
  return SLUICE_PEER_SOFTMAX_CHOSEN;
}

using Turns = std::vector<RouteGroup::Args>;

const RouteGroup::Args& turn_of(const Turns& turns, int64_t i) {
  return turns[static_cast<size_t>(i) % turns.size()];
}

// The two operations back to back.
Status add_separate(Memory& memory, const RouteGroup::Problem& problem, const Turns& turns, bool dependent,
                    Contest* contest, std::vector<std::string>* complaints) {
  const auto route = make_ready<RouteTopk>(memory, problem.route);
  const auto group = make_ready<GroupRows>(memory, RouteGroup::group(problem));
  for (const Status& status : {route.status(), group.status()})
    if (!status.ok()) return complaints->push_back("sluice-separate skipped: " + status.message), Status{};
  const auto enqueue = [&turns, route = route.value(), group = group.value(),
                        stream = memory.stream()](int64_t i) -> Status {
    const RouteGroup::Args& a = turn_of(turns, i);
    SLUICE_TRY(route->plan.run(a, route->workspace, stream));
    return group->plan.run(RouteGroup::group(a), group->workspace, stream);
  };
  contest->contenders.push_back({Who::kSluice, "sluice-separate", commit(), dependent, enqueue});
  return {};
}

Status add_peers(const Peers& peers, Memory& memory, const RouteGroup::Problem& problem, const Turns& turns,
                 bool dependent, Contest* contest) {
  const RouteTopk::Problem& p = problem.route;
  for (const sluice_peer* peer : peers.all()) {
    sluice_peer_routing call{.tokens = p.tokens,
                             .experts = p.experts,
                             .top_k = p.top_k,
                             .groups = p.groups,
                             .topk_groups = p.topk_groups,
                             .method = peer_method(p.method),
                             .what = 1,
                             .scale = p.scale,
                             .logits = turns[0].logits.data,
                             .bias = turns[0].bias.data,
                             .ids = turns[0].ids.as<int32_t>(),
                             .weights = turns[0].weights.as<float>(),
                             .scratch = nullptr,
                             .dependent = dependent};
    if (!peer->routing_supports) continue;
    // A baseline that refuses dependent launches is launched plainly in the chain of dependent launches.
    if (peer->routing_supports(&call)) call.dependent = 0;
    if (peer->routing_supports(&call)) continue;
    const size_t bytes = peer->routing_scratch_bytes ? peer->routing_scratch_bytes(&call) : 0;
    if (bytes > 0) SLUICE_TRY(memory.bytes(bytes, &call.scratch));
    const auto enqueue = [&turns, peer, call, stream = memory.stream()](int64_t i) mutable -> Status {
      const RouteGroup::Args& a = turn_of(turns, i);
      call.logits = a.logits.data;
      call.bias = a.bias.data;
      call.ids = a.ids.as<int32_t>();
      call.weights = a.weights.as<float>();
      const int error = peer->routing_enqueue(&call, cuda::queue_of(stream).stream);
      return error == 0 ? Status{}
                        : unsupported(std::string(peer->name) + ": error " + std::to_string(error));
    };
    contest->contenders.push_back(
        {Who::kPeer, csv_word(peer->name), csv_word(peer->version), dependent, enqueue});
  }
  return {};
}

}  // namespace

Status Bench::routing() {
  constexpr int64_t kTileRows = 64;
  auto left = std::count_if(std::begin(kRoutingShapes), std::end(kRoutingShapes),
                            [&](const Shape& s) { return wants(s.model); });
  for (const Shape& shape : kRoutingShapes) {
    if (!wants(shape.model)) continue;
    share(left--);
    for (const int64_t tokens : this->tokens()) {
      if (over(shape.model, tokens)) continue;
      const RouteGroup::Problem problem{.route = RouteTopk::at_tokens(shape.route, tokens),
                                        .tile_rows = kTileRows};
      Memory memory(device_);
      Turns turns(kTurns);
      for (RouteGroup::Args& args : turns) SLUICE_TRY(make_tensors(memory, problem, &args));
      for (const bool dependent : {false, true}) {
        Contest contest{.suite = "routing",
                        .op = "route_group",
                        .model = shape.model,
                        .note = dependent ? "dependent" : "plain",
                        .tokens = tokens,
                        .bytes = RouteGroup::bytes(problem),
                        .flops = RouteGroup::flops(problem)};
        contest.launches = launches_for(0, contest.bytes, contest.flops);
        contest.poison = [&] { return poison_routes(problem, turns[0], memory.stream()); };
        contest.verify = [&](Who who) -> Result<std::string> {
          const auto wrong = check_routes(device_, problem.route, turns[0], who);
          if (who == Who::kPeer || !wrong.ok() || !wrong.value().empty()) return wrong;
          return check_groups(device_, RouteGroup::group(problem), RouteGroup::group(turns[0]));
        };
        std::vector<std::string> complaints;
        const auto args = [&turns](int64_t i) { return turn_of(turns, i); };
        SLUICE_TRY(add_ours<RouteGroup>(memory, problem, args, dependent, &contest, &complaints));
        SLUICE_TRY(add_separate(memory, problem, turns, dependent, &contest, &complaints));
        SLUICE_TRY(add_peers(peers_, memory, problem, turns, dependent, &contest));
        SLUICE_TRY(hold(contest, std::move(complaints)));
      }
    }
  }
  return {};
}

}  // namespace sluice::bench
