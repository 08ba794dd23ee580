#include "nn/moe/graph.h"

#include "nn/moe/problems.h"

namespace sluice {
namespace {

// The output of row grouping (ops/group_rows.h), which the expert stages read.
struct Groups {
  ValueId row_count = kNoValue, row_begin = kNoValue, order = kNoValue, position = kNoValue;
};

// The weights of one product.
struct Matrices {
  Bind w = {}, scale = {}, bias = {}, act_params = {};
};

class Layer {
 public:
  Layer(Graph* graph, const MoeConfig& config, const NamedValues& values)
      : g_(*graph), c_(config), v_(values), p_(expert_problems(config)) {}

  MoeBetween append() {
    x_ = v_("x");
    if (c_.norm_x) norm("norm", v_("x"), v_("x_norm_weight"), x_ = Bind(g_.between("normed")));
    const Bind experts_x = c_.latent > 0 ? Bind(latent_in()) : x_;
    const ValueId shared = shared_apart(c_) ? shared_expert() : kNoValue;
    if (!c_.dense) route();
    const Groups groups = c_.dense ? group_of_all("group") : group("group", group_problem(c_), ids_);
    const ValueId answers = experts(experts_x, groups);
    const Bind sum = c_.latent > 0 ? Bind(g_.between("latent.y")) : v_("y");
    const Combine::Problem problem = combine_problem(c_);
    combine("combine", problem, answers, groups, problem.weighted ? out_.weights : kNoValue,
            problem.shared ? shared : kNoValue, sum);
    if (c_.latent > 0) latent_out(sum, shared);
    if (c_.norm_y) norm("norm.next", v_("y"), v_("norm_weight"), v_("normed"));
    return out_;
  }

 private:
  void norm(const char* name, const Bind& x, const Bind& weight, const Bind& y) {
    using A = RmsNorm::Args;
    g_.add<RmsNorm>(name, norm_problem(c_), {{&A::x, x}, {&A::weight, weight}, {&A::y, y}});
  }

  void route() {
    using A = RouteTopk::Args;
    if (has_router(c_)) {
      out_.logits = g_.between("logits");
      using R = RouterGemm::Args;
      g_.add<RouterGemm>(
          "router", router_problem(c_),
          {{&R::x, x_}, {&R::w, v_("router")}, {&R::bias, v_("router_bias")}, {&R::y, out_.logits}});
    }
    if (c_.lora_rank > 0) {
      using L = LoraDelta::Args;
      g_.add<LoraDelta>("router.lora", lora_problem(c_),
                        {{&L::x, x_},
                         {&L::a, v_("lora_a")},
                         {&L::b, v_("lora_b")},
                         {&L::scale, v_("lora_scale")},
                         {&L::adapter, v_("adapter")},
                         {&L::y, out_.logits}});
    }
    ids_ = v_("ids").value == kNoValue ? Bind(g_.between("ids")) : v_("ids");
    out_.ids = ids_.value;
    out_.weights = g_.between("weights");
    g_.add<RouteTopk>("route", route_problem(c_),
                      {{&A::logits, out_.logits},
                       {&A::bias, v_("correction_bias")},
                       {&A::hash_table, v_("hash_table")},
                       {&A::token_ids, v_("token_ids")},
                       {&A::expert_map, v_("expert_map")},
                       {&A::tokens_valid, v_("tokens_valid")},
                       {&A::ids_in, v_("ids_in")},
                       {&A::weights_in, v_("weights_in")},
                       {&A::packed_in, v_("packed_in")},
                       {&A::ids, ids_},
                       {&A::weights, out_.weights},
                       {&A::captured, chooses_in_captured(c_) ? Bind() : v_("captured")}});
  }

  Groups group(const std::string& name, const GroupRows::Problem& problem, const Bind& ids) {
    const std::string in = name == "group" ? "" : name.substr(0, name.find('.') + 1);
    const Groups out{g_.between(in + "row_count"), g_.between(in + "row_begin"), g_.between(in + "order"),
                     g_.between(in + "position")};
    using A = GroupRows::Args;
    g_.add<GroupRows>(name, problem,
                      {{&A::ids, ids},
                       {&A::row_count, out.row_count},
                       {&A::row_begin, out.row_begin},
                       {&A::order, out.order},
                       {&A::position, out.position}});
    return out;
  }
  // All tokens as rows of a single expert: for dense MLPs, a separate shared expert and latent projections.
  const Groups& group_of_all(const char* name) {
    if (all_.order == kNoValue) all_ = group(name, shared_group_problem(c_), v_("zeros"));
    return all_;
  }

  // gathers: true if x has one row per token, which the kernel gathers in the groups' order; false if x is already in that order.
  void product(const std::string& name, const ExpertGemm::Problem& problem, const Bind& x, const Matrices& m,
               const Groups& groups, bool gathers, ValueId y, StageOptions options = {}) {
    using A = ExpertGemm::Args;
    g_.add<ExpertGemm>(name, problem,
                       {{&A::x, x},
                        {&A::w, m.w},
                        {&A::w_scale, m.scale},
                        {&A::bias, m.bias},
                        {&A::act_params, m.act_params},
                        {&A::row_begin, groups.row_begin},
                        {&A::row_count, groups.row_count},
                        {&A::order, gathers ? groups.order : kNoValue},
                        {&A::weights, problem.weighted ? out_.weights : kNoValue},
                        {&A::y, y}},
                       options);
  }
  Matrices matrices(const std::string& name) {
    return {v_(name), v_(name + "_scale"), v_(name + "_bias"), {}};
  }

  ValueId experts(const Bind& x, const Groups& groups) {
    const ValueId h = g_.between("h"), answers = g_.between("g");
    Matrices up = matrices("experts.up");
    up.act_params = v_("experts.act_params");
    // MoeBackend's kernels apply only to routed experts.
    const bool named = !c_.dense;
    if (c_.expert_lora_rank > 0) return adapted_experts(x, up, groups, h, answers);
    product("experts.up", p_.up, x, up, groups, true, h, {.experts = named});
    product("experts.down", p_.down, h, matrices("experts.down"), groups, false, answers,
            {.rows = slots_of(c_), .experts = named});
    return answers;
  }

  // The experts with adapters: each product leaves its sums, which the next stage completes.
  ValueId adapted_experts(const Bind& x, const Matrices& up, const Groups& groups, ValueId h,
                          ValueId answers) {
    const AdaptedProblems p = adapted_problems(c_);
    const ValueId up_z = g_.between("experts.up.z"), down_z = g_.between("experts.down.z");
    product("experts.up", p.up, x, {.w = up.w, .scale = up.scale}, groups, true, up_z, {.experts = true});
    lora("experts.up", p.up_lora, x, up_z, up, groups, h);
    Matrices down = matrices("experts.down");
    product("experts.down", p.down, h, {.w = down.w, .scale = down.scale}, groups, false, down_z,
            {.rows = slots_of(c_), .experts = true});
    lora("experts.down", p.down_lora, h, down_z, down, groups, answers);
    return answers;
  }
  void lora(const std::string& of, const ExpertLora::Problem& problem, const Bind& x, ValueId z,
            const Matrices& m, const Groups& groups, ValueId y) {
    using A = ExpertLora::Args;
    g_.add<ExpertLora>(of + ".lora", problem,
                       {{&A::x, x},
                        {&A::z, z},
                        {&A::bias, m.bias},
                        {&A::act_params, m.act_params},
                        {&A::a, v_(of + "_lora_a")},
                        {&A::b, v_(of + "_lora_b")},
                        {&A::scale, v_("experts.lora_scale")},
                        {&A::adapter, v_("adapter")},
                        {&A::row_begin, groups.row_begin},
                        {&A::row_count, groups.row_count},
                        {&A::order, groups.order},
                        {&A::y, y}});
  }

  ValueId shared_expert() {
    const Groups& all = group_of_all("shared.group");
    const ValueId h = g_.between("shared.h"), y = g_.between("shared.y");
    product("shared.up", p_.shared_up, x_, matrices("shared.up"), all, true, h);
    product("shared.down", p_.shared_down, h, matrices("shared.down"), all, false, y);
    return y;
  }

  ValueId latent_in() {
    const Groups& all = group_of_all("latent.group");
    const ValueId y = g_.between("latent.x");
    product("latent.in", p_.latent_in, x_, {.w = v_("latent.in")}, all, true, y);
    return y;
  }
  void latent_out(const Bind& sum, ValueId shared) {
    const ValueId out = g_.between("latent.out");
    product("latent.out", p_.latent_out, sum, {.w = v_("latent.out")}, all_, false, out);
    combine("latent.add", latent_add_problem(c_), out, all_, kNoValue, shared, v_("y"));
  }

  void combine(const char* name, const Combine::Problem& problem, ValueId answers, const Groups& groups,
               ValueId weights, ValueId shared, const Bind& y) {
    using A = Combine::Args;
    g_.add<Combine>(name, problem,
                    {{&A::g, answers},
                     {&A::position, groups.position},
                     {&A::weights, weights},
                     {&A::shared, shared},
                     {&A::residual, problem.residual ? v_("residual") : Bind()},
                     {&A::y, y}});
  }

  Graph& g_;
  const MoeConfig& c_;
  const NamedValues& v_;
  ExpertProblems p_;
  MoeBetween out_;
  Groups all_;
  Bind x_;    // input of the router, the experts and the shared expert
  Bind ids_;  // ids of the chosen experts
};

}  // namespace

MoeBetween append_moe(Graph* graph, const MoeConfig& config, const NamedValues& values) {
  return Layer(graph, config, values).append();
}

void hold_weights(Graph* graph, const MoeConfig& config, NamedValues* values) {
  MoeWeights none;
  for (const auto& [spec, tensor] : weight_slots(config, &none))
    if (spec.used) values->set(spec.name, graph->held(std::string(spec.name)));
}

std::vector<size_t> weights_at(const MoeConfig& config) {
  MoeWeights weights;
  std::vector<size_t> out;
  for (const auto& [spec, tensor] : weight_slots(config, &weights))
    if (spec.used)
      out.push_back(static_cast<size_t>(reinterpret_cast<const std::byte*>(tensor) -
                                        reinterpret_cast<const std::byte*>(&weights)));
  return out;
}

MoeGraph moe_graph(const MoeConfig& config) {
  MoeGraph out;
  NamedValues values;
  MoeIo io;
  for (const auto& [spec, tensor] : io_slots(config, 0, &io))
    values.set(spec.name, out.graph.call(std::string(spec.name)));
  if (config.x_unaligned)
    for (const char* name : {"x", "residual", "y", "normed"}) out.graph.may_be_unaligned(values(name).value);
  values.set("zeros", out.graph.call("zeros"));
  hold_weights(&out.graph, config, &values);
  out.between = append_moe(&out.graph, config, values);
  // Moe::choice() returns these values, so the workspace must not reuse their memory.
  for (const ValueId value : {out.between.logits, out.between.ids, out.between.weights})
    if (value != kNoValue) out.graph.keep(value);
  return out;
}

}  // namespace sluice
