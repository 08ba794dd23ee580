// Whole layers, from activations to y, with the model's own router: moe_block, and draft_step with a shared expert. Both are planned
// through src/nn/moe/layer.h, as a user plans a layer.
#include <algorithm>
#include <memory>
#include <string>

#include "cuda/experts/bed.h"
#include "cuda/routes.h"
#include "cuda/suites.h"
#include "nn/moe/problems.h"

namespace sluice::bench {
namespace {

// A planned layer with rotating weights and inputs. `config` is the shape's config, with or without a shared expert.
class Block {
 public:
  // idle_adapters: no token has an adapter.
  Block(Experts& experts, Gate& gate, const MoeConfig& config, int64_t tokens, bool idle_adapters = false)
      : experts_(experts),
        gate_(gate),
        config_(config),
        tokens_(tokens),
        idle_adapters_(idle_adapters),
        memory_(gate.memory().device()) {}

  Status make() {
    auto moe = Moe::plan(memory_.device(), config_, tokens_);
    if (!moe.ok()) return moe.status();
    moe_ = std::move(moe).value();
    const auto bytes = static_cast<int64_t>(moe_->workspace_bytes());
    SLUICE_TRY(memory_.tensor(DType::kU8, {bytes}, &scratch_));
    // The bias is far smaller than a score: it changes some choices, but tokens still choose different experts.
    if (config_.correction_bias)
      SLUICE_TRY(memory_.random(DType::kF32, {config_.experts}, 0.01, &correction_bias_));
    if (config_.expert_lora_rank > 0) SLUICE_TRY(make_adapters());
    return memory_.tensor(config_.x, {tokens_, config_.hidden}, &y_);
  }

  Status run(int64_t i) const {
    return moe_->forward({.x = x(i), .residual = {}, .token_ids = {}, .adapter = adapter_, .y = y_},
                         weights(i), workspace(), memory_.device().stream());
  }

  Status poison_outputs() const {
    for (const Tensor& t : {scratch_, y_}) SLUICE_TRY(poison(t, memory_.device().stream()));
    return {};
  }

  // Logits, ids, weights and y of run 0.
  Result<std::string> check() const {
    const MoeChoice choice = moe_->choice(tokens_, workspace());
    const Result<std::string> logits = gate_.check(x(0), choice.logits, Who::kSluice);
    if (!logits.ok() || !logits.value().empty()) return logits;
    const RouteTopk::Problem route = RouteTopk::at_tokens(route_problem(config_), tokens_);
    RouteTopk::Args args;
    args.logits = choice.logits, args.ids = choice.ids, args.weights = choice.weights;
    args.bias = correction_bias_;
    const Result<std::string> routes = check_routes(memory_.device(), route, args, Who::kSluice);
    if (!routes.ok() || !routes.value().empty()) return routes;
    const int64_t shared = config_.shared_intermediate / config_.intermediate;
    return experts_.check(
        {.x = x(0), .ids = choice.ids, .weights = choice.weights, .y = y_, .shared = shared},
        our_share(experts_.shape()));
  }

  // The mean number of distinct experts, counted after some runs, because the router computes the ids from x.
  struct Reached {
    double experts = 0, rows = 0;
  };
  Result<Reached> reached() const {
    constexpr int64_t kRuns = 16;
    const ExpertShape& s = experts_.shape();
    Reached out;
    for (int64_t i = 0; i < kRuns; ++i) {
      SLUICE_TRY(run(i));
      HostTensor ids;
      SLUICE_TRY(to_host(memory_.device(), moe_->choice(tokens_, workspace()).ids, &ids));
      Draw draw;
      const int64_t pairs = elements_of(ids.tensor);
      draw.on_host.assign(ids.tensor.as<int32_t>(), ids.tensor.as<int32_t>() + pairs);
      for (const int32_t id : draw.on_host)
        if (id < (s.partial() ? -1 : 0) || id >= s.experts())
          return invalid("router: wanted ids below " + std::to_string(s.experts()) + ", found " +
                         std::to_string(id));
      const Draw::Reach reach = draw.reach(pairs);
      out.experts += static_cast<double>(reach.experts) / kRuns;
      out.rows += static_cast<double>(reach.rows) / kRuns;
    }
    return out;
  }

 private:
  static bool of_adapters(std::string_view weight) {
    return weight.starts_with("experts.") && weight.find("lora") != std::string_view::npos;
  }
  // Adapters of the experts. Their scale is zero, so y equals the layer's y without adapters, which check()
  // knows, while the kernels do all of their work. The tests compare the update with its reference.
  Status make_adapters() {
    const auto rows_of = [](const SlotSpec& spec) {
      int64_t rows = 1;
      for (int i = 0; i + 1 < spec.rank; ++i) rows *= spec.shape[static_cast<size_t>(i)];
      return rows;
    };
    MoeWeights unused;
    double bytes = 0;
    for (const auto& [spec, tensor] : weight_slots(config_, &unused))
      if (of_adapters(spec.name))
        bytes += static_cast<double>(
            bytes_of(spec.dtype, rows_of(spec) * spec.shape[static_cast<size_t>(spec.rank - 1)]));
    adapters_.resize(static_cast<size_t>(cold_sets(kColdBytes, bytes)));
    for (MoeWeights& set : adapters_) {
      for (const auto& [spec, tensor] : weight_slots(config_, &set)) {
        if (!of_adapters(spec.name)) continue;
        const double scale = spec.name == "experts.lora_scale" ? 0.0 : 0.02;
        const auto& shape = spec.shape;
        SLUICE_TRY(memory_.random(spec.dtype, {rows_of(spec), shape[static_cast<size_t>(spec.rank - 1)]},
                                  scale, tensor));
        *tensor = spec.rank == 1 ? make_tensor(tensor->data, spec.dtype, {shape[0]}, tensor->where)
                                 : make_tensor(tensor->data, spec.dtype,
                                               {shape[0], shape[1], shape[2], shape[3]}, tensor->where);
      }
    }
    std::vector<int32_t> of_token(static_cast<size_t>(tokens_));
    for (int64_t t = 0; t < tokens_; ++t)
      of_token[static_cast<size_t>(t)] =
          idle_adapters_ ? -1 : adapter_of_token(t, tokens_, config_.lora_adapters);
    return memory_.upload(of_token, {tokens_}, &adapter_);
  }
  Tensor x(int64_t i) const { return gate_.args(tokens_, i).x; }
  Workspace workspace() const { return {scratch_.as<std::byte>(), moe_->workspace_bytes()}; }
  MoeWeights weights(int64_t i) const {
    const PackedExperts& set = experts_.set(i);
    const RouterGemm::Args gate = gate_.args(tokens_, i);
    const auto first = [&](const Tensor& t) {
      return t.present() ? first_rows(t, local_experts(config_) + shared_slots(config_)) : t;
    };
    MoeWeights w;
    w.router = gate.w, w.router_bias = gate.bias, w.correction_bias = correction_bias_;
    w.experts.up = first(set.up), w.experts.up_scale = first(set.up_scale);
    w.experts.down = first(set.down), w.experts.down_scale = first(set.down_scale);
    w.experts.up_bias = experts_.up_bias(), w.experts.down_bias = experts_.down_bias();
    if (!adapters_.empty())
      w.expert_adapters = adapters_[static_cast<size_t>(i) % adapters_.size()].expert_adapters;
    if (!shared_apart(config_)) return w;
    const auto shared_of = [&](const Tensor& t) { return t.present() ? experts_.shared(t) : t; };
    w.shared.up = shared_of(set.up), w.shared.up_scale = shared_of(set.up_scale);
    w.shared.down = shared_of(set.down), w.shared.down_scale = shared_of(set.down_scale);
    return w;
  }

  Experts& experts_;
  Gate& gate_;
  MoeConfig config_;
  int64_t tokens_;
  bool idle_adapters_;
  mutable Memory memory_;
  std::unique_ptr<Moe> moe_;
  Tensor scratch_ = {}, correction_bias_ = {}, y_ = {}, adapter_ = {};
  std::vector<MoeWeights> adapters_;  // sets that rotate; only their expert_adapters are used
};

}  // namespace

Status Bench::block(Experts& experts, Gate& gate, int64_t tokens) {
  const ExpertShape& s = experts.shape();
  Block block(experts, gate, s.moe(), tokens);
  const Status made = block.make();
  const auto reached = made.ok() ? block.reached() : Result<Block::Reached>(made);
  if (!reached.ok()) return leave_out(s, "moe_block", reached.status());
  Contest contest{
      .suite = suite_, .op = "moe_block", .model = s.model, .note = "by router", .tokens = tokens};
  contest.bytes = s.bytes(tokens, reached.value().experts) + static_cast<double>(gate.shape().weight_bytes());
  contest.flops = s.flops(reached.value().rows) + RouterGemm::flops(gate.shape().problem(tokens));
  contest.contenders.push_back(contender_of("sluice", [&block](int64_t i) { return block.run(i); }));
  contest.poison = [&] { return block.poison_outputs(); };
  contest.verify = [&](Who) { return block.check(); };
  return hold_paced(contest, {});
}

// A layer with adapters of several ranks on its experts, and the layer alone.
Status Bench::adapted(Experts& experts, Gate& gate, int64_t tokens) {
  constexpr int64_t kRanks[] = {8, 16, 64}, kAdapters = 8;
  const ExpertShape& s = experts.shape();
  Block plain(experts, gate, s.moe(), tokens);
  const Status made = plain.make();
  const auto reached = made.ok() ? plain.reached() : Result<Block::Reached>(made);
  if (!reached.ok()) return leave_out(s, "moe_block_lora", reached.status());
  Contest contest{.suite = suite_,
                  .op = "moe_block_lora",
                  .model = s.model,
                  .note = std::to_string(kAdapters) + " adapters by router",
                  .tokens = tokens};
  contest.bytes = s.bytes(tokens, reached.value().experts) + static_cast<double>(gate.shape().weight_bytes());
  contest.flops = s.flops(reached.value().rows) + RouterGemm::flops(gate.shape().problem(tokens));
  const Block* ran = &plain;
  std::vector<std::unique_ptr<Block>> blocks;
  const auto add = [&](const std::string& impl, const Block& block) {
    contest.contenders.push_back(contender_of(impl, [&ran, &block](int64_t i) {
      ran = &block;
      return block.run(i);
    }));
  };
  add("sluice-no-adapters", plain);
  const auto add_rank = [&](int64_t rank, bool idle) -> Status {
    MoeConfig config = s.moe();
    config.expert_lora_rank = rank, config.lora_adapters = kAdapters;
    blocks.push_back(std::make_unique<Block>(experts, gate, config, tokens, idle));
    SLUICE_TRY(blocks.back()->make());
    add("sluice-rank-" + std::to_string(rank) + (idle ? "-unused" : ""), *blocks.back());
    return {};
  };
  for (const int64_t rank : kRanks) SLUICE_TRY(add_rank(rank, false));
  SLUICE_TRY(add_rank(kRanks[1], true));
  contest.poison = [&]() -> Status {
    SLUICE_TRY(plain.poison_outputs());
    for (const auto& block : blocks) SLUICE_TRY(block->poison_outputs());
    return {};
  };
  contest.verify = [&](Who) { return ran->check(); };
  return hold_paced(contest, {});
}

// The shared expert runs as one more expert of every token, or in launches of its own.
Status Bench::draft(Experts& experts, Gate& gate, int64_t tokens) {
  const ExpertShape& s = experts.shape();
  MoeConfig config = s.moe();
  config.shared_intermediate = s.shared * s.intermediate;
  Block apart(experts, gate, config, tokens);
  config.shared_as_slots = true;
  Block slot(experts, gate, config, tokens);
  const Status made = apart.make(), other = slot.make();
  const auto reached = made.ok() ? apart.reached() : Result<Block::Reached>(made);
  if (!reached.ok()) return leave_out(s, "draft_step", reached.status());
  std::vector<std::string> complaints;
  if (!other.ok()) complaints.push_back("sluice skipped: " + other.message);
  Contest contest{
      .suite = suite_, .op = "draft_step", .model = s.model, .note = "by router", .tokens = tokens};
  const auto all = static_cast<double>(s.shared);
  contest.bytes =
      s.bytes(tokens, reached.value().experts + all) + static_cast<double>(gate.shape().weight_bytes());
  contest.flops = s.flops(reached.value().rows + all * static_cast<double>(tokens)) +
                  RouterGemm::flops(gate.shape().problem(tokens));
  const Block* ran = &apart;
  const auto add = [&](const char* impl, const Block& block) {
    contest.contenders.push_back(contender_of(impl, [&ran, &block](int64_t i) {
      ran = &block;
      return block.run(i);
    }));
  };
  if (other.ok()) add("sluice", slot);
  add("sluice-shared-apart", apart);
  contest.poison = [&]() -> Status {
    SLUICE_TRY(apart.poison_outputs());
    return other.ok() ? slot.poison_outputs() : Status{};
  };
  contest.verify = [&](Who) { return ran->check(); };
  return hold_paced(contest, std::move(complaints));
}

Status Bench::leave_out(const ExpertShape& shape, const char* op, const Status& why) const {
  if (why.code == Code::kDevice || why.code == Code::kOutOfMemory) return why;
  return report_({}, {std::string(shape.model) + " " + op + " skipped: " + why.message});
}

}  // namespace sluice::bench
