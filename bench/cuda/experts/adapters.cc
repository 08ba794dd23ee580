// The operation of adapters alone (ops/expert_lora.h), each configuration of each kernel: rows for its cost model.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "cuda/experts/bed.h"
#include "cuda/suites.h"
#include "nn/moe/problems.h"

namespace sluice::bench {
namespace {

constexpr int64_t kAdapters = 8;

// The tensors of one product of a layer, for uniform routing.
class Adapted {
 public:
  Adapted(Device& device, ExpertLora::Problem problem) : p_(std::move(problem)), memory_(device) {}

  Status make() {
    const int64_t inner = ExpertLora::inner(p_), rows_b = ExpertLora::product_rows(p_);
    const double pairs = active_experts(static_cast<double>(p_.rows), p_.experts * p_.adapters);
    const int64_t sets =
        cold_sets(kColdBytes, 2 * pairs * static_cast<double>(inner * p_.width + rows_b * p_.rank));
    a_.resize(static_cast<size_t>(sets)), b_.resize(a_.size());
    for (size_t i = 0; i < a_.size(); ++i) {
      SLUICE_TRY(memory_.random(p_.w, {p_.adapters * p_.experts * inner, p_.width}, 0.02, &a_[i]));
      SLUICE_TRY(memory_.random(p_.w, {p_.adapters * p_.experts * rows_b, p_.rank}, 0.02, &b_[i]));
      a_[i] = make_tensor(a_[i].data, p_.w, {p_.adapters, p_.experts, inner, p_.width}, a_[i].where);
      b_[i] = make_tensor(b_[i].data, p_.w, {p_.adapters, p_.experts, rows_b, p_.rank}, b_[i].where);
    }
    SLUICE_TRY(memory_.random(p_.x, {p_.gathers ? p_.tokens : p_.rows, p_.width}, 1, kTurns, &x_));
    SLUICE_TRY(memory_.random(p_.z, {p_.rows, ExpertLora::z_columns(p_)}, 1, kTurns, &z_));
    SLUICE_TRY(memory_.several(p_.y, {p_.rows, p_.features}, kTurns, &y_));
    SLUICE_TRY(memory_.random(DType::kF32, {p_.adapters}, 1, &scale_));
    if (p_.bias) SLUICE_TRY(memory_.random(p_.bias_type, {p_.experts, rows_b}, 1, &bias_));
    Random random(3);
    std::vector<std::vector<int32_t>> of(static_cast<size_t>(p_.experts));
    std::vector<int32_t> adapter, begin, count, order;
    for (int64_t t = 0; t < p_.tokens; ++t) adapter.push_back(adapter_of_token(t, p_.tokens, p_.adapters));
    for (int64_t f = 0; f < p_.tokens * p_.slots; ++f)
      of[static_cast<size_t>(random.integer(0, p_.experts - 1))].push_back(static_cast<int32_t>(f));
    for (const auto& rows : of) {
      begin.push_back(static_cast<int32_t>(order.size())), count.push_back(static_cast<int32_t>(rows.size()));
      order.insert(order.end(), rows.begin(), rows.end());
    }
    begin.push_back(static_cast<int32_t>(order.size()));
    SLUICE_TRY(memory_.upload(adapter, {p_.tokens}, &adapter_));
    SLUICE_TRY(memory_.upload(begin, {p_.experts + 1}, &begin_));
    SLUICE_TRY(memory_.upload(count, {p_.experts}, &count_));
    return memory_.upload(order, {p_.rows}, &order_);
  }
  Memory& memory() { return memory_; }
  ExpertLora::Args args(int64_t i) const {
    ExpertLora::Args a;
    a.x = turn(x_, i), a.z = turn(z_, i), a.y = turn(y_, i), a.a = turn(a_, i), a.b = turn(b_, i);
    a.scale = scale_, a.adapter = adapter_, a.row_begin = begin_, a.row_count = count_, a.order = order_;
    if (p_.bias) a.bias = bias_;
    return a;
  }
  Status poison_outputs() { return poison(y_[0], memory_.stream()); }
  // That the output is finite: the tests compare it with the reference.
  Result<std::string> check() {
    HostTensor y;
    SLUICE_TRY(to_host(memory_.device(), bench::row_of(y_[0], p_.rows - 1), &y));
    for (int64_t i = 0; i < p_.features; ++i)
      if (!std::isfinite(load(y.tensor, i)))
        return std::string("the last row has an element that is not finite");
    return std::string();
  }

 private:
  ExpertLora::Problem p_;
  Memory memory_;
  std::vector<Tensor> x_, z_, y_, a_, b_;
  Tensor scale_ = {}, bias_ = {}, adapter_ = {}, begin_ = {}, count_ = {}, order_ = {};
};

}  // namespace

Status Bench::adapter_ways(const ExpertShape& s, int64_t tokens) {
  for (const int64_t rank : {int64_t{16}, int64_t{64}}) {
    MoeConfig config = s.moe();
    config.expert_lora_rank = rank, config.lora_adapters = kAdapters;
    const AdaptedProblems problems = adapted_problems(config);
    for (const bool up : {true, false}) {
      const ExpertLora::Problem p = ExpertLora::at_tokens(up ? problems.up_lora : problems.down_lora, tokens);
      Adapted adapted(device_, p);
      SLUICE_TRY(adapted.make());
      Contest contest{
          .suite = suite_,
          .op = up ? "expert_lora_up" : "expert_lora_down",
          .model = s.model,
          .note = "rank " + std::to_string(rank) + " with " + std::to_string(kAdapters) + " adapters",
          .tokens = tokens,
          .bytes = ExpertLora::bytes(p),
          .flops = ExpertLora::flops(p)};
      for (const ForcedWay& way : ways_near<ExpertLora>(device_, p, 4, true)) {
        const auto step = make_step<ExpertLora>(
            adapted.memory(), p, [&](int64_t i) { return adapted.args(i); }, way.policy);
        if (!step.ok()) return step.status();
        contest.contenders.push_back({Who::kCandidate, way.name, commit(), true, step.value()});
      }
      contest.poison = [&] { return adapted.poison_outputs(); };
      contest.verify = [&](Who) { return adapted.check(); };
      SLUICE_TRY(hold_paced(contest, {}));
    }
  }
  return {};
}

}  // namespace sluice::bench
