#include "nn/moe/canary.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>

#include "base/random.h"
#include "dispatch/plan.h"
#include "graph/runs.h"
#include "nn/moe/graph.h"
#include "ops/reference/expert_mlp_reference.h"
#include "weights/numbers.h"

namespace sluice {
namespace {

// A host tensor, which the reference reads, and its copy on the device.
struct Both {
  std::vector<std::byte> bytes;
  Tensor host;
  OwnedTensor device;
};

Result<Both> make_both(Device& device, const SlotSpec& spec) {
  auto made = OwnedTensor::make(device, spec, "canary");
  if (!made.ok()) return made.status();
  Both out{.bytes = std::vector<std::byte>(static_cast<size_t>(made.value().bytes())),
           .host = made.value().view(),
           .device = std::move(made).value()};
  out.host.data = out.bytes.data();
  out.host.where = Backend::kCpu;
  return out;
}

Status upload(Device& device, const Both& t) {
  SLUICE_TRY(device.copy(t.device.view().data, t.bytes.data(), t.bytes.size(), device.stream()));
  return device.wait(device.stream());
}
Status download(Device& device, Both* t) {
  SLUICE_TRY(device.copy(t->bytes.data(), t->device.view().data, t->bytes.size(), device.stream()));
  return device.wait(device.stream());
}

void fill_normal(const Tensor& t, Random& random) {
  for (int64_t i = 0; i < elements_of(t); ++i) {
    const auto value = static_cast<float>(random.normal());
    if (t.dtype == DType::kBF16) t.as<BF16>()[i] = to_bf16(value);
    if (t.dtype == DType::kF32) t.as<float>()[i] = value;
  }
}

// Returns `count` distinct numbers below `size`, ascending: 0, size - 1 and random ones.
std::vector<int64_t> some_of(int64_t size, int64_t count, Random& random) {
  std::set<int64_t> out{0, size - 1};
  while (static_cast<int64_t>(out.size()) < std::min(size, count)) out.insert(random.integer(0, size - 1));
  return {out.begin(), out.end()};
}

// A batch of rows grouped by expert; `experts` are the experts that get rows.
struct Grouping {
  std::vector<int64_t> experts;
  std::vector<int32_t> begin, count, order;               // as in ops/group_rows.h, over all local experts
  std::vector<int32_t> begin_of_chosen, count_of_chosen;  // over `experts` only
};
Grouping deal(int64_t rows, int64_t local_experts, std::vector<int64_t> experts) {
  Grouping g{.experts = std::move(experts),
             .begin = {},
             .count = {},
             .order = {},
             .begin_of_chosen = {},
             .count_of_chosen = {}};
  const auto chosen = static_cast<int64_t>(g.experts.size());
  for (int64_t e = 0, i = 0; e < local_experts; ++e) {
    g.begin.push_back(static_cast<int32_t>(g.order.size()));
    if (i < chosen && g.experts[static_cast<size_t>(i)] == e) {
      g.begin_of_chosen.push_back(g.begin.back());
      for (int64_t r = i; r < rows; r += chosen) g.order.push_back(static_cast<int32_t>(r));
      g.count_of_chosen.push_back(static_cast<int32_t>(g.order.size()) - g.begin.back());
      ++i;
    }
    g.count.push_back(static_cast<int32_t>(g.order.size()) - g.begin.back());
  }
  g.begin.push_back(static_cast<int32_t>(rows));
  g.begin_of_chosen.push_back(static_cast<int32_t>(rows));
  return g;
}

Tensor view(std::vector<int32_t>& v) {
  return make_tensor(v.data(), DType::kI32, {static_cast<int64_t>(v.size())});
}

// The checkpoint's weights of some features of some experts, as a small row-major matrix that the reference
// reads.
struct SomeRows {
  std::vector<std::byte> w, scales;
  std::vector<uint16_t> bias;
};

class Canary {
 public:
  Canary(Device& device, const LoadedMoe& loaded, const MoeSource& source, const CanaryOptions& options)
      : device_(device), loaded_(loaded), source_(source), options_(options), random_(options.seed) {}

  Status run() {
    const MoeConfig& c = loaded_.config();
    const ExpertProblems p = expert_problems(c);
    const auto step =
        plan_moe(device_.info(), device_.catalog(), c, options_.tokens, options_.policy, options_.backend);
    if (!step.ok()) return step.status();
    const auto phases =
        phases_of(options_.backend, device_.info(), device_.catalog(), options_.tokens, options_.policy);
    if (!phases.ok()) return phases.status();
    const std::string& named = phases.value().back().kernel;  // kernel for the largest token count
    policy_ = options_.policy;
    if (!named.empty()) policy_.force += (policy_.force.empty() ? "" : ",") + named;
    std::vector<const ExpertSource*> experts;
    for (const ExpertSource& e : source_.of_expert) experts.push_back(&e);
    if (named.empty() || forced_kernels(named)[0].op() != ExpertMlp::kName)
      SLUICE_TRY(pair("experts", p.up, p.down, loaded_.weights().experts, experts));
    for (const PieceProblem& piece : step.value().problems(options_.tokens)) {
      if (!piece.experts) continue;
      if (piece.problem->op() == ExpertMlp::kName)
        SLUICE_TRY(as_one(*run_at<ExpertMlp>(step.value().graph(), piece.first), experts));
      if (piece.problem->op() == GroupedMlp::kName)
        SLUICE_TRY(grouped(*run_at<GroupedMlp>(step.value().graph(), piece.first), experts));
    }
    policy_ = options_.policy;
    if (source_.latent) {
      ExpertWeights projections;
      projections.up = loaded_.weights().latent_in, projections.down = loaded_.weights().latent_out;
      SLUICE_TRY(pair("latent", p.latent_in, p.latent_out, projections, {&*source_.latent}));
    }
    if (!source_.shared) return {};
    return pair("shared", p.shared_up, p.shared_down, loaded_.weights().shared, {&*source_.shared});
  }

 private:
  // One matrix product: its problem, its packed weights, and its weights in the checkpoint.
  struct Stage {
    std::string name;
    ExpertGemm::Problem problem;
    Tensor w, w_scale, bias;
    std::vector<const MatrixSource*> sources;  // one per local expert
    const CheckpointTensor* source_bias = nullptr;
  };

  Status pair(const std::string& name, ExpertGemm::Problem up, ExpertGemm::Problem down,
              const ExpertWeights& w, const std::vector<const ExpertSource*>& experts) {
    up = ExpertGemm::at_tokens(up, options_.tokens);
    down = ExpertGemm::at_tokens(down, up.rows);
    Stage first{name + ".up", up, w.up, w.up_scale, w.up_bias, {}, source_.up_bias};
    Stage second{name + ".down", down, w.down, w.down_scale, w.down_bias, {}, source_.down_bias};
    for (const ExpertSource* e : experts) first.sources.push_back(&e->up), second.sources.push_back(&e->down);
    Grouping rows = deal(up.rows, up.experts, some_of(up.experts, 3, random_));
    auto x = make_both(device_, slot("x", Role::kIn, up.x, {up.tokens, up.width}));
    auto h = make_both(device_, slot("h", Role::kOut, up.y, {up.rows, up.features}));
    auto y = make_both(device_, slot("y", Role::kOut, down.y, {down.rows, down.features}));
    for (const auto* made : {&x, &h, &y})
      if (!made->ok()) return made->status();
    fill_normal(x.value().host, random_);
    SLUICE_TRY(upload(device_, x.value()));
    SLUICE_TRY(stage(first, rows, x.value(), &h.value()));
    return stage(second, rows, h.value(), &y.value());
  }

  // Checks a fused kernel of the whole expert MLP: runs it with tokens that choose a few experts, and
  // compares one random token with the reference of its whole expert.
  Status as_one(const ExpertMlp::Problem& problem, const std::vector<const ExpertSource*>& experts) {
    const ExpertMlp::Problem p = ExpertMlp::at_tokens(problem, options_.tokens);
    const auto plan = make_plan<ExpertMlp>(device_, p, policy_of<ExpertMlp>());
    if (!plan.ok()) return plan.status();
    const std::vector<int64_t> chosen = some_of(p.experts, 3, random_);
    const auto expert_of = [&](int64_t token) { return chosen[static_cast<size_t>(token) % chosen.size()]; };
    ExpertMlp::Args args, host;
    std::vector<Both> made;
    SLUICE_TRY(run_on<ExpertMlp>(plan.value(), &args, &host, &made, [&](Tensor ExpertMlp::Args::*member) {
      for (int64_t t = 0; member == &ExpertMlp::Args::ids && t < p.tokens; ++t)
        for (int64_t k = 0; k < p.slots; ++k)
          host.ids.row<int32_t>(t)[k] = k == t % p.slots ? static_cast<int32_t>(expert_of(t)) : -1;
    }));
    const int64_t token = random_.integer(0, p.tokens - 1);
    for (Tensor ExpertMlp::Args::*t :
         {&ExpertMlp::Args::x, &ExpertMlp::Args::weights, &ExpertMlp::Args::shared,
          &ExpertMlp::Args::residual, &ExpertMlp::Args::y})
      host.*t = row_of(host.*t, token);
    return look_at_token(p, host, token % p.slots, expert_of(token), std::string(plan.value().kernel()),
                         experts);
  }

  // Checks a fused kernel of both products: runs it on rows of a few experts, and compares one random row
  // with the reference of its whole expert.
  Status grouped(const GroupedMlp::Problem& problem, const std::vector<const ExpertSource*>& experts) {
    const GroupedMlp::Problem p = GroupedMlp::at_tokens(problem, options_.tokens);
    const auto plan = make_plan<GroupedMlp>(device_, p, policy_of<GroupedMlp>());
    if (!plan.ok()) return plan.status();
    const int64_t rows = GroupedMlp::rows(p);
    const Grouping lists = deal(rows, p.mlp.experts, some_of(p.mlp.experts, 3, random_));
    GroupedMlp::Args args, host;
    std::vector<Both> made;
    SLUICE_TRY(run_on<GroupedMlp>(plan.value(), &args, &host, &made, [&](Tensor GroupedMlp::Args::*member) {
      using A = GroupedMlp::Args;
      for (const auto& [slot, list] :
           {std::pair{&A::row_begin, &lists.begin}, {&A::row_count, &lists.count}, {&A::order, &lists.order}})
        if (member == slot) std::copy(list->begin(), list->end(), (host.*member).template as<int32_t>());
    }));
    const int64_t row = random_.integer(0, rows - 1), flat = lists.order[static_cast<size_t>(row)],
                  token = flat / p.mlp.slots;
    // The reference computes a token that chooses only this expert, with weight 1 unless the weights apply to
    // the input.
    ExpertMlp::Problem alone = p.mlp;
    alone.y = p.mlp.g;
    std::vector<float> ones(static_cast<size_t>(p.mlp.slots), 1);
    ExpertMlp::Args a;
    a.x = row_of(host.x, token), a.y = row_of(host.g, row);
    a.weights = p.mlp.weight_on_input ? row_of(host.weights, token)
                                      : make_tensor(ones.data(), DType::kF32, {1, p.mlp.slots});
    const auto after =
        std::upper_bound(lists.begin.begin(), lists.begin.end() - 1, static_cast<int32_t>(row));
    // upper_bound skips experts without rows, which begin where the next expert begins.
    const int64_t expert = after - lists.begin.begin() - 1;
    return look_at_token(alone, a, flat % p.mlp.slots, expert, std::string(plan.value().kernel()), experts);
  }

  static Tensor row_of(const Tensor& t, int64_t row) {
    if (!t.present()) return {};
    return make_tensor(t.as<std::byte>() + bytes_of(t.dtype, row * t.stride[0]), t.dtype, {1, t.shape[1]});
  }

  // Runs the plan on the layer's experts and random inputs; `fill` writes the remaining inputs into
  // host.*member. Afterwards `host` holds the output, which is the last slot.
  template <class Op, class Fill>
  Status run_on(const Plan<Op>& plan, typename Op::Args* args, typename Op::Args* host,
                std::vector<Both>* made, Fill fill) {
    const ExpertWeights& w = loaded_.weights().experts;
    args->up = w.up, args->up_scale = w.up_scale, args->up_bias = w.up_bias;
    args->down = w.down, args->down_scale = w.down_scale, args->down_bias = w.down_bias;
    Status status;
    Op::slots(plan.problem(), [&](const SlotSpec& spec, Tensor Op::Args::*member) {
      if (!spec.used || (args->*member).present() || !status.ok()) return;
      auto both = make_both(device_, spec);
      if (!both.ok()) return void(status = both.status());
      args->*member = both.value().device.view(), host->*member = both.value().host;
      fill_normal(host->*member, random_);
      fill(member);
      status = upload(device_, both.value());
      made->push_back(std::move(both).value());
    });
    SLUICE_TRY(status);
    SLUICE_TRY(run_plan(plan, *args));
    return download(device_, &made->back());
  }

  // Compares one token with the reference. `a` holds the token's x, weights, y and the tensors that are added
  // to y. Only slot `slot` has an expert.
  Status look_at_token(ExpertMlp::Problem p, ExpertMlp::Args a, int64_t slot, int64_t expert,
                       const std::string& kernel, const std::vector<const ExpertSource*>& experts) {
    const ExpertSource& source = *experts[static_cast<size_t>(expert)];
    std::vector<int32_t> ids(static_cast<size_t>(p.slots), -1);
    ids[static_cast<size_t>(slot)] = 0;
    p.tokens = p.experts = 1, p.layout = WeightLayout::kRowMajor;
    a.ids = make_tensor(ids.data(), DType::kI32, {1, p.slots});
    const auto whole = [&](const ExpertGemm::Problem& of, const MatrixSource& from,
                           const CheckpointTensor* bias) {
      const Stage stage{"", of, {}, {}, {}, std::vector(static_cast<size_t>(expert + 1), &from), bias};
      std::vector<int64_t> all(static_cast<size_t>(of.features));
      std::iota(all.begin(), all.end(), 0);
      Grouping one;
      one.experts = {expert};
      return rows_of(stage, one, all);
    };
    const ExpertGemm::Problem first = ExpertMlp::up(p), second = ExpertMlp::down(p);
    SomeRows up = whole(first, source.up, source_.up_bias),
             down = whole(second, source.down, source_.down_bias);
    const auto give = [&](const ExpertGemm::Problem& of, SomeRows& rows, Tensor* w, Tensor* scale,
                          Tensor* bias) {
      const int64_t n = ExpertGemm::weight_rows(of);
      *w = make_tensor(rows.w.data(), of.w, {1, n, of.width});
      if (!rows.scales.empty())
        *scale = make_tensor(rows.scales.data(), DType::kU8,
                             {1, n, ExpertGemm::format(of).row_scale_bytes(of.width)});
      if (of.bias) *bias = make_tensor(rows.bias.data(), DType::kBF16, {1, n});
    };
    give(first, up, &a.up, &a.up_scale, &a.up_bias);
    give(second, down, &a.down, &a.down_scale, &a.down_bias);
    const Expected want = reference(p, a, [&](int64_t count, const std::function<void(int64_t)>& f) {
      parallel_for(loaded_.options().threads, count, f);
    })[0];
    for (int64_t i = 0; i < p.hidden; ++i) {
      const auto at = static_cast<size_t>(i);
      const double got = load2(a.y, 0, i);
      if (within(want, at, got)) continue;
      return wrong("experts", expert, i, want.value[at], want.bound[at], got, kernel);
    }
    return {};
  }

  static bool within(const Expected& want, size_t at, double got) {
    if (std::isnan(want.value[at]) && std::isnan(got)) return true;
    return std::abs(got - want.value[at]) <= want.bound[at] || got == want.value[at] ||
           std::isinf(want.bound[at]);
  }
  Status wrong(const std::string& stage, int64_t expert, int64_t feature, double wanted, double bound,
               double found, const std::string& kernel) const {
    return {Code::kCorrupt, source_.place() + ": " + stage + ": " +
                                (stage.starts_with("experts") ? source_.expert_name(expert) : "expert 0") +
                                ", feature " + std::to_string(feature) + ": wanted " +
                                std::to_string(wanted) + " within " + std::to_string(bound) +
                                " (computed from the checkpoint's bytes), found " + std::to_string(found) +
                                " from " + kernel + " on the packed weights; do not serve"};
  }

  // The policy, reduced to the kernels that it forces for this operation.
  template <class Op>
  Policy policy_of() const {
    return policy_for(policy_, Op::kName);
  }

  // Enqueues the plan with its own scratch memory, and waits.
  template <class Op>
  Status run_plan(const Plan<Op>& plan, const typename Op::Args& args) {
    const auto bytes = static_cast<int64_t>(plan.workspace_bytes());
    const auto scratch = OwnedTensor::make(device_, slot("", Role::kIn, DType::kU8, {bytes + 1}), "canary");
    if (!scratch.ok()) return scratch.status();
    SLUICE_TRY(
        plan.run(args, {scratch.value().view().as<std::byte>(), plan.workspace_bytes()}, device_.stream()));
    return device_.wait(device_.stream());
  }

  // Runs the planned kernel on x, writes the result to y on the device and the host, and checks it.
  Status stage(const Stage& s, Grouping& rows, const Both& x, Both* y) {
    const auto plan = make_plan<ExpertGemm>(device_, s.problem, policy_of<ExpertGemm>());
    if (!plan.ok()) return plan.status();
    ExpertGemm::Args args{.x = x.device.view(),
                          .w = s.w,
                          .w_scale = s.w_scale,
                          .bias = s.bias,
                          .act_params = {},
                          .row_begin = {},
                          .row_count = {},
                          .order = {},
                          .weights = {},
                          .y = y->device.view()};
    Both lists[4];
    std::vector<float> weights(static_cast<size_t>(s.problem.weighted ? s.problem.rows : 0));
    for (float& w : weights) w = static_cast<float>(random_.uniform());
    const auto send = [&](Both* to, const void* data, const SlotSpec& spec, Tensor* arg) -> Status {
      auto made = make_both(device_, spec);
      if (!made.ok()) return made.status();
      *to = std::move(made).value();
      std::memcpy(to->bytes.data(), data, to->bytes.size());
      *arg = to->device.view();
      return upload(device_, *to);
    };
    const int64_t experts = s.problem.experts;
    SLUICE_TRY(send(&lists[0], rows.begin.data(), slot("row_begin", Role::kIn, DType::kI32, {experts + 1}),
                    &args.row_begin));
    SLUICE_TRY(send(&lists[1], rows.count.data(), slot("row_count", Role::kIn, DType::kI32, {experts}),
                    &args.row_count));
    if (s.problem.slots > 0)
      SLUICE_TRY(send(&lists[2], rows.order.data(), slot("order", Role::kIn, DType::kI32, {s.problem.rows}),
                      &args.order));
    if (s.problem.weighted)
      SLUICE_TRY(send(&lists[3], weights.data(), slot("weights", Role::kIn, DType::kF32, {s.problem.rows}),
                      &args.weights));
    SLUICE_TRY(run_plan(plan.value(), args));
    SLUICE_TRY(download(device_, y));
    const Tensor weights_view =
        weights.empty() ? Tensor{} : make_tensor(weights.data(), DType::kF32, {s.problem.rows});
    return look(s, rows, x.host, weights_view, y->host, std::string(plan.value().kernel()));
  }

  SomeRows rows_of(const Stage& s, const Grouping& rows, const std::vector<int64_t>& features) const {
    const ExpertGemm::Problem& p = s.problem;
    const bool gated = is_gated(p.act);
    const WeightFormat format = ExpertGemm::format(p);
    const auto count = static_cast<int64_t>(features.size());
    const int64_t row_bytes = bytes_of(p.w, p.width), scale_bytes = format.row_scale_bytes(p.width);
    const int64_t weight_rows = (gated ? 2 : 1) * count;
    SomeRows out;
    out.w.resize(rows.experts.size() * static_cast<size_t>(weight_rows * row_bytes));
    out.scales.resize(rows.experts.size() * static_cast<size_t>(weight_rows * scale_bytes));
    out.bias.resize(p.bias ? rows.experts.size() * static_cast<size_t>(weight_rows) : 0);
    std::vector<std::byte> gathered(static_cast<size_t>(row_stage_bytes(format, p.width)));
    for (size_t e = 0; e < rows.experts.size(); ++e) {
      const MatrixSource& from = *s.sources[static_cast<size_t>(rows.experts[e])];
      for (int64_t i = 0; i < count; ++i) {
        const int64_t feature = features[static_cast<size_t>(i)];
        for (int up = 0; up <= (gated ? 1 : 0); ++up) {
          const RowSpan& span = up ? from.ups[0] : from.rows[0];
          const auto to =
              static_cast<int64_t>(e) * weight_rows + (gated ? gated_row(p.gate_order, count, i, up) : i);
          const RowBytes row = read_row(span, format, feature, p.width, gathered.data());
          std::memcpy(out.w.data() + to * row_bytes, row.codes, static_cast<size_t>(row_bytes));
          if (format.scaled())
            std::memcpy(out.scales.data() + to * scale_bytes, row.scales, static_cast<size_t>(scale_bytes));
          if (p.bias) out.bias[static_cast<size_t>(to)] = bias_at(s, rows.experts[e], feature, up);
        }
      }
    }
    return out;
  }

  // The bias of one feature of a local expert in the checkpoint.
  uint16_t bias_at(const Stage& s, int64_t expert, int64_t feature, bool up) const {
    const CheckpointTensor& t = *s.source_bias;
    int64_t row = feature;
    if (s.source_bias == source_.up_bias) {
      row += source_.width.begin;
      if (is_gated(s.problem.act)) row = gated_row(s.problem.gate_order, source_.whole.intermediate, row, up);
    }
    const int64_t at = (source_.experts.begin + expert) * t.shape[1] + row;
    BF16 value;
    convert_numbers(t.type, t.data + number_bytes(t.type, at), 1, DType::kBF16,
                    reinterpret_cast<std::byte*>(&value));
    return value.bits;
  }

  // Compares some features of y with the reference.
  Status look(const Stage& s, Grouping& rows, const Tensor& x, const Tensor& weights, const Tensor& y,
              const std::string& kernel) {
    const std::vector<int64_t> features = some_of(s.problem.features, options_.features, random_);
    SomeRows few = rows_of(s, rows, features);
    const auto experts = static_cast<int64_t>(rows.experts.size()),
               count = static_cast<int64_t>(features.size());
    ExpertGemm::Problem p = s.problem;
    p.experts = experts, p.features = count, p.layout = WeightLayout::kRowMajor;
    const int64_t weight_rows = ExpertGemm::weight_rows(p);
    ExpertGemm::Args args{.x = x,
                          .w = make_tensor(few.w.data(), p.w, {experts, weight_rows, p.width}),
                          .w_scale = {},
                          .bias = {},
                          .act_params = {},
                          .row_begin = view(rows.begin_of_chosen),
                          .row_count = view(rows.count_of_chosen),
                          .order = view(rows.order),
                          .weights = weights,
                          .y = {}};
    if (!few.scales.empty())
      args.w_scale = make_tensor(few.scales.data(), DType::kU8,
                                 {experts, weight_rows, ExpertGemm::format(p).row_scale_bytes(p.width)});
    if (p.bias) args.bias = make_tensor(few.bias.data(), DType::kBF16, {experts, weight_rows});
    const Expectations wanted = reference(p, args);
    const Expected& want = wanted[0];
    for (int64_t e = 0; e < experts; ++e) {
      const int64_t begin = rows.begin_of_chosen[static_cast<size_t>(e)],
                    end = begin + rows.count_of_chosen[static_cast<size_t>(e)];
      for (int64_t r = begin; r < end; ++r) {
        for (int64_t i = 0; i < count; ++i) {
          const auto at = static_cast<size_t>(r * count + i);
          const int64_t feature = features[static_cast<size_t>(i)];
          const double got = load2(y, r, feature);
          if (within(want, at, got)) continue;
          return wrong(s.name, rows.experts[static_cast<size_t>(e)], feature, want.value[at], want.bound[at],
                       got, kernel);
        }
      }
    }
    return {};
  }

  Device& device_;
  const LoadedMoe& loaded_;
  const MoeSource& source_;
  const CanaryOptions& options_;
  Policy policy_;  // the policy for the matrices being checked
  Random random_;
};

}  // namespace

Status canary(Device& device, const LoadedMoe& loaded, const Checkpoint& checkpoint,
              const CanaryOptions& options) {
  if (options.tokens < 1 || options.features < 1)
    return invalid("canary: wanted at least one token and one feature, found " +
                   std::to_string(options.tokens) + " and " + std::to_string(options.features));
  const MoeLoadOptions& o = loaded.options();
  const auto source = find_moe(checkpoint, loaded.whole(), o.naming, o.layer, o.slice);
  if (!source.ok()) return source.status();
  return Canary(device, loaded, source.value(), options).run();
}

}  // namespace sluice
