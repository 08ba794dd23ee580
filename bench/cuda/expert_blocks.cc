// Whole blocks, from activations to the layer's output, with the model's own router: moe_block, and draft_step with a shared
// expert.
#include "backends/cuda/queue.h"
#include "cuda/expert_bed.h"
#include "cuda/suites.h"

namespace sluice::bench {
namespace {

// The ids are what the router makes of x, so what they reach is counted behind some runs: the mean over them.
struct Reached {
  double experts = 0, rows = 0;
};
Result<Reached> reached_by(Device& device, const Way& way, const Layer& layer, const ExpertShape& s) {
  constexpr int64_t kRuns = 16;
  Reached out;
  for (int64_t i = 0; i < kRuns; ++i) {
    for (const auto& step : way.steps) SLUICE_TRY(step(i));
    HostTensor ids;
    SLUICE_TRY(to_host(device, layer.routes(i).ids, &ids));
    Draw draw;
    const int64_t pairs = ids.tensor.shape[0] * ids.tensor.shape[1];
    draw.on_host.assign(ids.tensor.as<int32_t>(), ids.tensor.as<int32_t>() + pairs);
    for (const int32_t id : draw.on_host)
      if (id < (s.partial() ? -1 : 0) || id >= s.experts()) return invalid("wrong: id " + std::to_string(id));
    const Draw::Reach reach = draw.reach(pairs);
    out.experts += static_cast<double>(reach.experts) / kRuns;
    out.rows += static_cast<double>(reach.rows) / kRuns;
  }
  return out;
}

// The shared expert as a layer of one expert that every token takes, as nn/moe.cc runs it where it fits no slot.
class SharedExpert {
 public:
  SharedExpert(Experts& experts, int64_t tokens)
      : experts_(experts), memory_(experts.memory().device()), tokens_(tokens) {}
  Status make() {
    const ExpertShape& s = experts_.shape();
    SLUICE_TRY(memory_.tensor(DType::kI32, {tokens_, 1}, &group_.ids));
    const Stream stream = memory_.stream();
    SLUICE_TRY(cuda::check(cudaMemsetAsync(group_.ids.data, 0, sizeof(int32_t) * static_cast<size_t>(tokens_),
                                           cuda::queue_of(stream).stream),
                           "clearing ids"));
    Status status;
    GroupRows::slots(group_problem(), [&](const SlotSpec& spec, Tensor GroupRows::Args::*member) {
      if (spec.used && spec.role == Role::kOut && status.ok())
        status = memory_.tensor(spec, &(group_.*member));
    });
    SLUICE_TRY(status);
    SLUICE_TRY(memory_.tensor(DType::kBF16, {tokens_, s.intermediate}, &h_));
    return memory_.tensor(DType::kBF16, {tokens_, s.hidden}, &y_);
  }
  const Tensor& y() const { return y_; }
  Status poison_outputs() {
    for (const Tensor& t : {h_, y_}) SLUICE_TRY(poison(t, memory_.stream()));
    return {};
  }
  template <class MakeX>
  Status add(Way* way, MakeX x) {
    const ExpertShape& s = experts_.shape();
    ExpertGemm::Problem up = s.up(tokens_), down = s.down(tokens_);
    up.rows = down.rows = tokens_;
    up.experts = down.experts = up.slots = 1;
    down.y = DType::kBF16;
    SLUICE_TRY(add_step<GroupRows>(memory_, way, group_problem(), [this](int64_t) { return group_; }));
    SLUICE_TRY(add_step<ExpertGemm>(memory_, way, up, [this, x](int64_t i) {
      ExpertGemm::Args a;
      a.x = x(i), a.w = experts_.shared(experts_.set(i).up), a.y = h_;
      a.row_begin = group_.row_begin, a.row_count = group_.row_count, a.order = group_.order;
      return a;
    }));
    return add_step<ExpertGemm>(memory_, way, down, [this](int64_t i) {
      ExpertGemm::Args a;
      a.x = h_, a.w = experts_.shared(experts_.set(i).down), a.y = y_;
      a.row_begin = group_.row_begin, a.row_count = group_.row_count;
      return a;
    });
  }

 private:
  GroupRows::Problem group_problem() const { return {.tokens = tokens_, .slots = 1, .experts = 1}; }

  Experts& experts_;
  Memory memory_;
  int64_t tokens_;
  GroupRows::Args group_ = {};
  Tensor h_ = {}, y_ = {};
};

// Router, routing, experts and combine, as src/nn/moe.cc runs them; `shared` may be null.
Status add_parts(Layer& layer, Bed& bed, Gate& gate, Way* way, SharedExpert* shared) {
  SLUICE_TRY(layer.gate(way));
  SLUICE_TRY(layer.route_group(way));
  const auto x = [&gate, tokens = bed.tokens()](int64_t i) { return gate.args(tokens, i).x; };
  SLUICE_TRY(add_gemms(bed, way, x, [&layer](int64_t i) { return RouteGroup::group(layer.routes(i)); }));
  if (shared) SLUICE_TRY(shared->add(way, x));
  Combine::Problem problem = bed.combine_problem();
  problem.shared = shared != nullptr;
  return add_step<Combine>(bed.memory(), way, problem, [&layer, &bed, shared](int64_t i) {
    const RouteGroup::Args a = layer.routes(i);
    Combine::Args combine = bed.combine(a.weights, a.position);
    if (shared) combine.shared = shared->y();
    return combine;
  });
}

// Router, routing, and the experts as one operation.
Status add_block_as_one(Layer& layer, Bed& bed, Gate& gate, Way* way, SharedExpert* shared) {
  SLUICE_TRY(layer.gate_route(way));
  const auto x = [&gate, tokens = bed.tokens()](int64_t i) { return gate.args(tokens, i).x; };
  if (shared) SLUICE_TRY(shared->add(way, x));
  ExpertMlp::Problem problem = bed.shape().mlp(bed.tokens());
  problem.shared = shared != nullptr;
  return add_as_one(bed.memory(), way, problem, [&layer, &bed, shared, x](int64_t i) {
    const RouteGroup::Args a = layer.routes(i);
    ExpertMlp::Args mlp = bed.mlp(i, x(i), a.ids, a.weights);
    if (shared) mlp.shared = shared->y();
    return mlp;
  });
}

// Whichever of the two the cost models take for faster, as there.
Status add_block(Layer& layer, Bed& bed, Gate& gate, Way* way, SharedExpert* shared) {
  Way parts = *way, one = *way;
  SLUICE_TRY(add_parts(layer, bed, gate, &parts, shared));
  SLUICE_TRY(add_block_as_one(layer, bed, gate, &one, shared));
  *way = one.cost_us < parts.cost_us ? one : parts;
  return {};
}

// Of run 0; `shared` experts of every token belong to the layer.
Result<std::string> check_block(Experts& experts, Layer& layer, Bed& bed, Gate& gate, int64_t shared) {
  Result<std::string> wrong = layer.check_choice();
  if (!wrong.ok() || !wrong.value().empty()) return wrong;
  const RouteGroup::Args a = layer.routes(0);
  const Tensor x = gate.args(bed.tokens(), 0).x;
  return experts.check({.x = x, .ids = a.ids, .weights = a.weights, .y = bed.y(), .shared = shared},
                       kOurShare);
}

}  // namespace

Status Bench::block(Experts& experts, Gate& gate, int64_t tokens) {
  const ExpertShape& s = experts.shape();
  const LayerShape front = s.front();
  Layer layer(gate, front, tokens, 0);  // the experts' kernels make their own tiles
  SLUICE_TRY(layer.make());
  const std::vector<Tensor> no_x;
  const std::vector<Draw> no_draws;
  Bed bed(experts, s, no_x, no_draws, tokens);
  SLUICE_TRY(bed.make());
  Way way{.impl = "sluice"};
  const Status made = add_block(layer, bed, gate, &way, {});
  const Result<Reached> reached = made.ok() ? reached_by(device_, way, layer, s) : Result<Reached>(made);
  if (!reached.ok()) return leave_out(s, "moe_block", reached.status());
  Contest contest{
      .suite = suite_, .op = "moe_block", .model = s.model, .note = "by router", .tokens = tokens};
  contest.bytes = bed.bytes(reached.value().experts) + static_cast<double>(front.gate.weight_bytes());
  contest.flops = bed.flops(reached.value().rows) + RouterGemm::flops(front.gate.problem(tokens));
  contest.contenders.push_back(contender_of(way, true));
  contest.poison = [&]() -> Status {
    SLUICE_TRY(layer.poison_outputs());
    return bed.poison_outputs();
  };
  contest.verify = [&](Who) { return check_block(experts, layer, bed, gate, 0); };
  return hold_paced(contest, {});
}

// The shared expert as one more expert of every token, as nn/moe.cc runs this model, and beside the others, which takes more
// launches.
Status Bench::draft(Experts& experts, Gate& gate, int64_t tokens) {
  const ExpertShape& s = experts.shape();
  const ExpertShape with_slot = s.with_shared_slot();
  const LayerShape front = s.front();
  LayerShape slot_front = front;
  slot_front.route.shared_slots = s.shared;
  Layer apart(gate, front, tokens, 0), slot(gate, slot_front, tokens, 0);
  SLUICE_TRY(apart.make());
  SLUICE_TRY(slot.make());
  const std::vector<Tensor> no_x;
  const std::vector<Draw> no_draws;
  Bed bed(experts, s, no_x, no_draws, tokens), slot_bed(experts, with_slot, no_x, no_draws, tokens);
  SLUICE_TRY(bed.make());
  SLUICE_TRY(slot_bed.make());
  SharedExpert shared(experts, tokens);
  SLUICE_TRY(shared.make());
  Way way{.impl = "sluice-shared-apart"}, slot_way{.impl = "sluice"};
  const Status made = add_block(apart, bed, gate, &way, &shared);
  const Result<Reached> reached = made.ok() ? reached_by(device_, way, apart, s) : Result<Reached>(made);
  if (!reached.ok()) return leave_out(s, "draft_step", reached.status());
  std::vector<std::string> complaints;
  const Status other = add_block(slot, slot_bed, gate, &slot_way, {});
  if (!other.ok()) complaints.push_back(slot_way.impl + " left out: " + other.message);
  Contest contest{
      .suite = suite_, .op = "draft_step", .model = s.model, .note = "by router", .tokens = tokens};
  const auto all = static_cast<double>(s.shared);
  contest.bytes = bed.bytes(reached.value().experts + all) + static_cast<double>(front.gate.weight_bytes());
  contest.flops = bed.flops(reached.value().rows + all * static_cast<double>(tokens)) +
                  RouterGemm::flops(front.gate.problem(tokens));
  bool ran_slot = false;
  for (const Way* w : {&slot_way, &way}) {
    if (w == &slot_way && !other.ok()) continue;
    Contender contender = contender_of(*w, true);
    contender.enqueue = [&ran_slot, w, &slot_way, run = contender.enqueue](int64_t i) {
      ran_slot = w == &slot_way;
      return run(i);
    };
    contest.contenders.push_back(std::move(contender));
  }
  contest.poison = [&]() -> Status {
    for (Layer* layer : {&apart, &slot}) SLUICE_TRY(layer->poison_outputs());
    for (Bed* b : {&bed, &slot_bed}) SLUICE_TRY(b->poison_outputs());
    return shared.poison_outputs();
  };
  contest.verify = [&](Who) {
    return ran_slot ? check_block(experts, slot, slot_bed, gate, s.shared)
                    : check_block(experts, apart, bed, gate, s.shared);
  };
  return hold_paced(contest, std::move(complaints));
}

Status Bench::leave_out(const ExpertShape& shape, const char* op, const Status& why) const {
  if (why.code == Code::kDevice || why.code == Code::kOutOfMemory) return why;
  return report_({}, {std::string(shape.model) + " " + op + " left out: " + why.message});
}

}  // namespace sluice::bench
